package process

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeExecutable writes a program into a new directory and returns its path.
func writeExecutable(t *testing.T, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// elfHeadWithLoader returns the start of a 64-bit ELF program that names a dynamic loader.
func elfHeadWithLoader(t *testing.T, loader string) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	const headerBytes, entryBytes = 64, 56                               // sizes in bytes, as defined by elf(5)
	b := append(own[:24:24], make([]byte, headerBytes+entryBytes-24)...) // e_ident, e_type, e_machine and e_version
	put := binary.NativeEndian
	put.PutUint64(b[32:], headerBytes) // e_phoff
	put.PutUint16(b[52:], headerBytes)
	put.PutUint16(b[54:], entryBytes)
	put.PutUint16(b[56:], 1) // e_phnum
	p := b[headerBytes:]
	put.PutUint32(p, 3)                          // p_type: PT_INTERP
	put.PutUint64(p[8:], headerBytes+entryBytes) // p_offset
	put.PutUint64(p[32:], uint64(len(loader)+1))
	return string(b) + loader + "\x00"
}

// runWithAndWithoutLimits runs a command twice, and passes each result to check: once with limits, which a
// limiter (a helper process) sets before it executes the command, and once without.
func runWithAndWithoutLimits(t *testing.T, argv []string, check func(r Result, stdout string)) {
	t.Helper()
	check(runOnNewWorker(t, newTestCommand(t, argv...)))
	c := newTestCommand(t, argv...)
	c.Nice = 1
	check(runOnNewWorker(t, c))
}

// If a program exists, but its interpreter cannot be executed, the error names the interpreter.
func TestStartErrorNamesMissingInterpreter(t *testing.T) {
	unrunnable := filepath.Join(t.TempDir(), "unrunnable")
	if err := os.WriteFile(unrunnable, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		script  string
		code    int64
		wantErr []string
	}{
		"carriage return": {"#!/bin/sh\r\necho hi\r\n", 127,
			[]string{`interpreter "/bin/sh\r": no such file`, "carriage return", "Unix line endings"}},
		"missing":        {"#! /no/such/python -u\n", 127, []string{`interpreter "/no/such/python": no such file`}},
		"no newline":     {"#!/no/such/python", 127, []string{`interpreter "/no/such/python": no such file`}},
		"not executable": {"#!" + unrunnable + "\n", 126, []string{`interpreter "` + unrunnable + `": permission denied`}},
		"its interpreter": {"#!" + writeExecutable(t, "middle", "#!/no/such/perl\n") + "\n", 127,
			[]string{`interpreter "/no/such/perl": no such file`}},
		"dynamic loader": {elfHeadWithLoader(t, "/lib/ld-musl-none.so.1"), 127,
			[]string{`interpreter "/lib/ld-musl-none.so.1": no such file`}},
	} {
		path := writeExecutable(t, "job", c.script)
		runWithAndWithoutLimits(t, []string{path}, func(r Result, stdout string) {
			if r.ExitCode != c.code || r.ResourceShortage || stdout != "" ||
				!strings.HasPrefix(r.Error, "cannot start "+path+": ") {
				t.Errorf("%s: got %+v, %q, want exit code %d", name, r, stdout, c.code)
			}
			for _, text := range c.wantErr {
				if !strings.Contains(r.Error, text) {
					t.Errorf("%s: the error is %q, want it to contain %q", name, r.Error, text)
				}
			}
			if hint := strings.Contains(r.Error, "carriage return"); hint != strings.Contains(c.script, "\r") {
				t.Errorf("%s: got %q, a hint to a carriage return: %v", name, r.Error, hint)
			}
		})
	}
}

// If a script is its own interpreter, or names its interpreter by a relative path, the error names both the
// script and the interpreter.
func TestStartErrorNamesScriptAndInterpreter(t *testing.T) {
	job := writeExecutable(t, "job", "#!./job\n")
	dir := filepath.Dir(job)
	for name, script := range map[string]string{"a": "#!./b\n", "b": "#!" + dir + "/a\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	otherDir, inRoot := t.TempDir(), writeExecutable(t, "directory", "#!/\n")
	for name, c := range map[string]struct {
		program, dir string
		code         int64
		wantErr      string
	}{
		"itself": {"./job", dir, 126,
			`cannot start ./job: interpreter "./job" leads back to ./job; after #!, name a program such as /bin/sh`},
		"itself, by a path": {job, dir, 126, `cannot start ` + job + `: interpreter "./job" leads back to ` + job +
			`; after #!, name a program such as /bin/sh`},
		"another one": {"./a", dir, 126, `cannot start ./a: interpreter "` + dir +
			`/a" leads back to ./a; after #!, name a program such as /bin/sh`},
		"relative": {job, otherDir, 127, `cannot start ` + job + `: interpreter "./job": no such file or directory; ` +
			`it is relative to the working directory, not to ` + job + `; write its whole path after #!`},
		"a directory": {inRoot, dir, 126, `cannot start ` + inRoot + `: interpreter "/": is a directory`},
	} {
		for _, nice := range []int{0, 1} {
			cmd := newTestCommand(t, c.program)
			cmd.WorkingDir, cmd.Nice = c.dir, nice
			if r, stdout := runOnNewWorker(t, cmd); r.ExitCode != c.code || r.Error != c.wantErr || stdout != "" ||
				!r.StartFailedPermanently {
				t.Errorf("%s, nice %d: got %+v, %q; want exit code %d and %q", name, nice, r, stdout, c.code, c.wantErr)
			}
		}
	}
}

// A script without #! is run by /bin/sh, which gets the path and the arguments of the script. execvp(3) does
// the same.
func TestScriptWithoutInterpreterIsRunByTheShell(t *testing.T) {
	for name, script := range map[string]string{
		"no line":    "echo \"$#:$1:$2\"\n",
		"comment":    "# a comment\necho \"$#:$1:$2\"\n",
		"empty name": "#!  \necho \"$#:$1:$2\"\n",
	} {
		path := writeExecutable(t, "job", script)
		runWithAndWithoutLimits(t, []string{path, "a b", "-c"}, func(r Result, stdout string) {
			if r.ExitCode != 0 || r.Error != "" || stdout != "2:a b:-c" {
				t.Errorf("%s: the result is %+v, output %q; want the path and both arguments", name, r, stdout)
			}
		})
	}
	path := writeExecutable(t, "job", "test -t 1 && (echo terminal >/dev/tty); exit 7\n")
	c := newTestCommand(t, "job")
	c.Env = []string{"PATH=" + filepath.Dir(path)}
	if r, stdout := runOnNewWorker(t, c); r.ExitCode != 7 {
		t.Errorf("by PATH: got %+v, %q", r, stdout)
	}
	c = newTestCommand(t, path)
	c.TTY = true
	if r, stdout := runOnNewWorker(t, c); r.ExitCode != 7 || stdout != "terminal" {
		t.Errorf("on a terminal: got %+v, %q", r, stdout)
	}
	c = newTestCommand(t, "-v/job")
	c.WorkingDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(c.WorkingDir, "-v"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, filepath.Join(c.WorkingDir, "-v", "job")); err != nil {
		t.Fatal(err)
	}
	if r, stdout := runOnNewWorker(t, c); r.ExitCode != 7 || stdout != "" {
		t.Errorf("a path like an option: got %+v, %q", r, stdout)
	}
}

// The shell does not run a program for another machine, because it would interpret the program's bytes as
// commands.
func TestShellDoesNotRunForeignBinary(t *testing.T) {
	foreign := []byte(elfHeadWithLoader(t, "/lib/none.so"))
	foreign[18] = 0xff // e_machine
	path := writeExecutable(t, "job", string(foreign))
	runWithAndWithoutLimits(t, []string{path}, func(r Result, stdout string) {
		if r.ExitCode != 126 || !strings.Contains(r.Error, "exec format error") || stdout != "" {
			t.Errorf("the result is %+v, output %q; want an exec format error", r, stdout)
		}
	})
}
