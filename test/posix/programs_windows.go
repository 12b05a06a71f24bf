package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// programsByName contains the implementations of the programs that the tests call, by name. Each has only the
// features that the tests use, and returns its exit code.
var programsByName map[string]func(*programCall) int

// builtinPrograms lists programs that always end quickly. The shell runs them in its own process, because
// starting a process is slow.
var builtinPrograms = []string{"cut", "dd", "flock", "grep", "head", "hold", "ls", "mkdir", "mv", "rm", "sed", "seq",
	"sort", "tee", "touch", "tr", "wc"}

func init() {
	programsByName = map[string]func(*programCall) int{
		"cat": cat, "cut": cut, "dd": dd, "env": env, "flock": flock, "grep": grep, "head": head, "hold": holdFileOpen,
		"ls":    ls,
		"mkdir": mkdir, "mv": mv,
		"rm": rm, "sed": sed, "seq": seq, "setsid": setsid, "sleep": sleep, "sort": sortLines, "tee": tee, "timeout": timeout,
		"touch": touch, "tr": tr, "wc": wc, "yes": yes,
	}
}

// takeFlags removes the leading arguments that start with a dash and returns their letters as one string.
func (c *programCall) takeFlags() (flags string) {
	for len(c.args) > 0 && len(c.args[0]) > 1 && c.args[0][0] == '-' {
		flags += c.args[0][1:]
		c.args = c.args[1:]
	}
	return flags
}

// forEachArgument calls a function for each argument and stops at the first error.
func (c *programCall) forEachArgument(visit func(arg string) error) int {
	for _, arg := range c.args {
		if err := visit(arg); err != nil {
			return c.printError(err)
		}
	}
	return 0
}

// readInput returns the content of the named files, or of standard input if there are no names.
func (c *programCall) readInput(fileNames ...string) ([]byte, error) {
	if len(fileNames) == 0 {
		return io.ReadAll(c.stdin)
	}
	var content []byte
	for _, name := range fileNames {
		f, err := c.openInput(name)
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		content = append(content, raw...)
	}
	return content, nil
}

func sleep(c *programCall) int {
	seconds, err := strconv.ParseFloat(c.args[0], 64)
	if err != nil {
		return c.printError(err)
	}
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	return 0
}

func cat(c *programCall) int {
	if len(c.args) == 0 {
		c.args = []string{"-"}
	}
	return c.forEachArgument(func(name string) error {
		f, err := c.openInput(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(c.stdout, f)
		return err
	})
}

// dd implements dd if=FILE skip=BYTES count=BYTES and ignores its other arguments.
func dd(c *programCall) int {
	var inputPath string
	var skip, count int64
	for _, arg := range c.args {
		key, value, _ := strings.Cut(arg, "=")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "if":
			inputPath = value
		case "skip":
			skip = n
		case "count":
			count = n
		}
	}
	f, err := os.Open(c.resolvePath(inputPath))
	if err != nil {
		return c.printError(err)
	}
	defer f.Close()
	_, err = io.Copy(c.stdout, io.NewSectionReader(f, skip, count))
	return c.exitStatus(err)
}

// head implements head -N, head -n N and head -c SIZE for stdin or one file.
func head(c *programCall) int {
	bytes, n := false, int64(10)
	for len(c.args) > 0 && strings.HasPrefix(c.args[0], "-") {
		value := c.args[0][1:]
		c.args = c.args[1:]
		if bytes = value == "c"; bytes || value == "n" {
			value, c.args = c.args[0], c.args[1:]
		}
		number, mega := strings.CutSuffix(value, "M")
		parsed, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return c.printError(err)
		}
		if n = parsed; mega {
			n <<= 20
		}
	}
	f, err := io.ReadCloser(io.NopCloser(c.stdin)), error(nil)
	if len(c.args) > 0 {
		if f, err = c.openInput(c.args[0]); err != nil {
			return c.printError(err)
		}
	}
	defer f.Close()
	if bytes {
		_, err := io.CopyBuffer(struct{ io.Writer }{c.stdout}, io.LimitReader(f, n), make([]byte, 64<<10))
		return c.exitStatus(err)
	}
	for lines := bufio.NewReader(f); n > 0; n-- {
		line, err := lines.ReadString('\n')
		io.WriteString(c.stdout, line)
		if err != nil {
			break
		}
	}
	return 0
}

func seq(c *programCall) int {
	n, err := strconv.Atoi(c.args[0])
	if err != nil {
		return c.printError(err)
	}
	w := bufio.NewWriter(c.stdout)
	for i := range n {
		fmt.Fprintln(w, i+1)
	}
	return c.exitStatus(w.Flush())
}

func yes(c *programCall) int {
	for line := bytes.Repeat([]byte("y\n"), 4096); ; {
		if _, err := c.stdout.Write(line); err != nil {
			return 1
		}
	}
}

// timeout implements timeout SECONDS COMMAND.
func timeout(c *programCall) int {
	seconds, err := strconv.ParseFloat(c.args[0], 64)
	if err != nil {
		return c.printError(err)
	}
	cmd, code := c.startProgram(c.args[1], c.args[2:])
	if cmd == nil {
		return code
	}
	timer := time.AfterFunc(time.Duration(seconds*float64(time.Second)), func() { cmd.Process.Kill() })
	defer timer.Stop()
	cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// setsid starts a command detached from the console of this process and does not wait for the command.
func setsid(c *programCall) int {
	self, err := os.Executable()
	if err != nil {
		return c.printError(err)
	}
	cmd := exec.Command(self, c.args[1:]...)
	cmd.Args[0], cmd.Env = c.args[0], c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, c.stdout, c.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP}
	if h := heldFileHandle(); h != 0 {
		cmd.SysProcAttr.AdditionalInheritedHandles = []syscall.Handle{h}
	}
	return c.exitStatus(cmd.Start())
}

// env implements env [-i] [NAME=VALUE…] [COMMAND…].
func env(c *programCall) int {
	if len(c.args) > 0 && c.args[0] == "-i" {
		c.args = c.args[1:]
		// Keep SYSTEMROOT, because Windows starts no process without this variable.
		c.env = slices.DeleteFunc(c.env, func(v string) bool { return !strings.HasPrefix(strings.ToUpper(v), "SYSTEMROOT=") })
	}
	for len(c.args) > 0 && strings.Contains(c.args[0], "=") {
		c.env, c.args = append(c.env, c.args[0]), c.args[1:]
	}
	if len(c.args) > 0 {
		return c.runProgram(c.args[0], c.args[1:]...)
	}
	for _, v := range c.env {
		if !strings.HasPrefix(v, heldFileHandleEnvVar+"=") {
			fmt.Fprintln(c.stdout, v)
		}
	}
	return 0
}

// kill implements kill -KILL PID. Any other signal also ends the process, because Windows has no signals.
func kill(c *programCall) int {
	c.takeFlags()
	return c.forEachArgument(func(word string) error {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			return err
		}
		return p.Kill()
	})
}

func touch(c *programCall) int {
	return c.forEachArgument(func(name string) error {
		f, err := os.OpenFile(c.resolvePath(name), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

func rm(c *programCall) int {
	force := strings.Contains(c.takeFlags(), "f")
	return c.forEachArgument(func(name string) error {
		if err := os.RemoveAll(c.resolvePath(name)); !force {
			return err
		}
		return nil
	})
}

func mkdir(c *programCall) int {
	c.takeFlags()
	return c.forEachArgument(func(name string) error { return os.MkdirAll(c.resolvePath(name), 0o700) })
}

func mv(c *programCall) int {
	return c.exitStatus(os.Rename(c.resolvePath(c.args[0]), c.resolvePath(c.args[1])))
}

func ls(c *programCall) int {
	all := strings.Contains(c.takeFlags(), "A")
	if len(c.args) == 0 {
		c.args = []string{"."}
	}
	return c.forEachArgument(func(name string) error {
		list, err := os.ReadDir(c.resolvePath(name))
		for _, e := range list {
			if all || e.Name()[0] != '.' {
				fmt.Fprintln(c.stdout, e.Name())
			}
		}
		return err
	})
}

func tee(c *programCall) int {
	flag := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if strings.Contains(c.takeFlags(), "a") {
		flag = os.O_RDWR | os.O_CREATE | os.O_APPEND
	}
	f, err := os.OpenFile(c.resolvePath(c.args[0]), flag, 0o600)
	if err != nil {
		return c.printError(err)
	}
	defer f.Close()
	_, err = io.Copy(io.MultiWriter(c.stdout, lockedAppendFile{f}), c.stdin)
	return c.exitStatus(err)
}

func wc(c *programCall) int {
	flags := c.takeFlags()
	raw, err := c.readInput(c.args...)
	if err != nil {
		return c.printError(err)
	}
	if flags == "c" {
		fmt.Fprintln(c.stdout, len(raw))
	} else {
		fmt.Fprintln(c.stdout, bytes.Count(raw, []byte("\n")))
	}
	return 0
}

// tr implements tr SET1 SET2 with one character each, tr -d SET and tr -s ' '.
func tr(c *programCall) int {
	flags := c.takeFlags()
	deleted := strings.Contains(flags, "d")
	if strings.Contains(flags, "s") {
		raw, err := c.readInput()
		if err != nil {
			return c.printError(err)
		}
		c.stdout.Write(regexp.MustCompile(` +`).ReplaceAll(raw, []byte(" ")))
		return 0
	}
	set := func(word string) string {
		return strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00", `\r`, "\r").Replace(word)
	}
	from, to := set(c.args[0]), ""
	if !deleted {
		to = set(c.args[1])
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := c.stdin.Read(buf)
		if _, e := io.WriteString(c.stdout, strings.ReplaceAll(string(buf[:n]), from, to)); e != nil {
			return c.printError(e)
		}
		if errors.Is(err, io.EOF) {
			return 0
		}
		if err != nil {
			return c.printError(err)
		}
	}
}

func sortLines(c *programCall) int {
	raw, err := c.readInput(c.args...)
	if err != nil {
		return c.printError(err)
	}
	list := slices.Sorted(strings.Lines(string(raw)))
	io.WriteString(c.stdout, strings.Join(list, ""))
	return 0
}

// cut implements cut -c FROM-TO.
func cut(c *programCall) int {
	raw, err := c.readInput(c.args[2:]...)
	if err != nil {
		return c.printError(err)
	}
	first, last, _ := strings.Cut(c.args[1], "-")
	from, _ := strconv.Atoi(first)
	to, _ := strconv.Atoi(last)
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		fmt.Fprintln(c.stdout, line[min(from-1, len(line)):min(to, len(line))])
	}
	return 0
}

// grep implements grep [-c] [-v] [-E] [-q] PATTERN [FILE…]. PATTERN is a regular expression of Go.
func grep(c *programCall) int {
	flags := c.takeFlags()
	pattern, err := regexp.Compile(c.args[0])
	if err != nil {
		return c.printError(err)
	}
	raw, err := c.readInput(c.args[1:]...)
	if err != nil {
		return c.printError(err)
	}
	n := 0
	for line := range strings.Lines(string(raw)) {
		if pattern.MatchString(strings.TrimSuffix(line, "\n")) == strings.Contains(flags, "v") {
			continue
		}
		if n++; !strings.ContainsAny(flags, "cq") {
			io.WriteString(c.stdout, line)
		}
	}
	if strings.Contains(flags, "c") {
		fmt.Fprintln(c.stdout, n)
	}
	if n == 0 {
		return 1
	}
	return 0
}

// sedSubstitutionPattern matches the command s of sed. The groups are the separator and the rest.
var sedSubstitutionPattern = regexp.MustCompile(`^s(.)(.*)$`)

// sed implements sed [-i] SCRIPT [FILE], where SCRIPT consists of s/PATTERN/TEXT/, /PATTERN/d and Nd.
func sed(c *programCall) int {
	inPlace := strings.Contains(c.takeFlags(), "i")
	raw, err := c.readInput(c.args[1:]...)
	if err != nil {
		return c.printError(err)
	}
	var b strings.Builder
	number := 0
	for line := range strings.Lines(string(raw)) {
		number++
		line, keep := strings.TrimSuffix(line, "\n"), true
		for _, command := range strings.Split(c.args[0], ";") {
			command = strings.TrimSpace(command)
			if m := sedSubstitutionPattern.FindStringSubmatch(command); m != nil {
				parts := strings.Split(m[2], m[1])
				pattern, err := regexp.Compile(parts[0])
				if err != nil {
					return c.printError(err)
				}
				if match := pattern.FindStringIndex(line); match != nil {
					line = line[:match[0]] + parts[1] + line[match[1]:]
				}
			} else if pattern, deletes := strings.CutSuffix(command, "/d"); deletes {
				matched, err := regexp.MatchString(strings.TrimPrefix(pattern, "/"), line)
				if err != nil {
					return c.printError(err)
				}
				keep = keep && !matched
			} else if command == fmt.Sprint(number, "d") {
				keep = false
			}
		}
		if keep {
			b.WriteString(line + "\n")
		}
	}
	if !inPlace {
		io.WriteString(c.stdout, b.String())
		return 0
	}
	return c.exitStatus(os.WriteFile(filepath.Clean(c.resolvePath(c.args[1])), []byte(b.String()), 0o600))
}
