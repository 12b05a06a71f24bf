// Command sh provides the parts of a POSIX system that the jobs of the tests need on Windows: a shell and a few
// programs. The name under which it is called selects the program, as in busybox. With --install DIR it adds
// all programs to a directory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

func main() {
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	c := &programCall{args: os.Args[1:], env: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	switch {
	case name == "sh" && len(c.args) == 2 && c.args[0] == "--install":
		os.Exit(linkPrograms(c, c.args[1]))
	case name == "sh":
		os.Exit(runShell(c))
	case programsByName[name] != nil:
		os.Exit(programsByName[name](c))
	}
	for _, word := range []string{"echo", "printf", "test", "[", "true", "false"} {
		if name == word { // this name is a builtin of the shell interpreter
			c.args = append([]string{"-c", word + ` "$@"`, word}, c.args...)
			os.Exit(runShell(c))
		}
	}
	os.Exit(c.printError(fmt.Errorf("%s: no such program", name)))
}

// linkPrograms links this program into a directory, under the name of each program.
func linkPrograms(c *programCall, dir string) int {
	self, err := os.Executable()
	if err != nil {
		return c.printError(err)
	}
	names := []string{"sh", "echo", "printf", "test", "true", "false"}
	for name := range programsByName {
		names = append(names, name)
	}
	for _, name := range names {
		if err := os.Link(self, filepath.Join(dir, name+".exe")); err != nil && !errors.Is(err, os.ErrExist) {
			return c.printError(err)
		}
	}
	return 0
}

// runShell implements sh [-e] -c TEXT [NAME ARG…], sh [-e] FILE [ARG…], and sh with the script on
// standard input.
func runShell(c *programCall) int {
	text, flags, args := "", "", c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		flags, args = flags+args[0][1:], args[1:]
	}
	file, err := io.ReadCloser(nil), error(nil)
	switch {
	case strings.Contains(flags, "c") && len(args) > 0:
		text, args = args[0], args[min(len(args), 2):]
	case len(args) > 0:
		file, err = c.openInput(args[0])
		args = args[1:]
	default:
		file = io.NopCloser(c.stdin)
	}
	if err != nil {
		c.printError(err)
		return 127
	}
	if file != nil {
		raw, err := io.ReadAll(file)
		file.Close()
		if err != nil {
			return c.printError(err)
		}
		text = string(raw)
	}
	return c.interpretScript(text, strings.Contains(flags, "e"), args)
}

// interpretScript runs a script and returns its exit code. exitOnError has the effect of the option -e.
func (c *programCall) interpretScript(script string, exitOnError bool, args []string) int {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(script), "sh")
	if err != nil {
		c.printError(err)
		return 2
	}
	rewriteForksToProcesses(file)
	options := []interp.RunnerOption{
		interp.Env(expand.ListEnviron(c.env...)), interp.StdIO(c.stdin, c.stdout, c.stderr), interp.Dir(c.workDir),
		interp.CallHandler(replaceBuiltins), interp.OpenHandler(openRedirection),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return executeShellCommand }),
	}
	if exitOnError {
		options = append(options, interp.Params(append([]string{"-e", "--"}, args...)...))
	} else {
		options = append(options, interp.Params(append([]string{"--"}, args...)...))
	}
	r, err := interp.New(options...)
	if err != nil {
		return c.printError(err)
	}
	err = r.Run(context.Background(), file)
	var status interp.ExitStatus
	if errors.As(err, &status) {
		if status == 255 && lastExitCodeAbove255 != 0 {
			return lastExitCodeAbove255
		}
		return int(status)
	}
	if err != nil {
		return c.printError(err)
	}
	return 0
}

// These constants are internal commands that rewriteForksToProcesses puts into a script.
const (
	backgroundCommand          = "\x00background" // starts the command and does not wait for it
	subshellCommand            = "\x00subshell"   // runs a text in a separate shell
	newestBackgroundPIDCommand = "\x00newest"     // prints the pid of the newest background process
	echoCommand                = "\x00echo"       // writes a line with a single write
	waitCommand                = "\x00wait"       // waits for all background processes
	killCommand                = "\x00kill"       // ends processes
)

// rewriteForksToProcesses changes a script so that background commands and subshells run in processes, as in POSIX. The
// shell interpreter would run them in goroutines.
func rewriteForksToProcesses(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			sub, isSub := n.Cmd.(*syntax.Subshell)
			switch {
			case n.Background:
				n.Background = false
				n.Cmd = makeBackgroundCommand(n.Cmd)
				return false
			case isSub:
				n.Cmd = quotedCommand(subshellCommand, shellSource(sub.Stmts...))
				return false
			}
		case *syntax.Word:
			replaceLastBackgroundPID(n.Parts)
		case *syntax.DblQuoted:
			replaceLastBackgroundPID(n.Parts)
		}
		return true
	})
}

// makeBackgroundCommand returns a command that starts cmd in the background. A single program, and each program
// of a pipe, runs without a shell. Any other command runs in a shell.
func makeBackgroundCommand(cmd syntax.Command) syntax.Command {
	switch c := cmd.(type) {
	case *syntax.CallExpr:
		if len(c.Assigns) == 0 && len(c.Args) > 0 && !interp.IsBuiltin(c.Args[0].Lit()) {
			c.Args = slices.Insert(c.Args, 0, quotedWord(backgroundCommand))
			return c
		}
	case *syntax.BinaryCmd:
		if c.Op == syntax.Pipe {
			c.X.Cmd, c.Y.Cmd = makeBackgroundCommand(c.X.Cmd), makeBackgroundCommand(c.Y.Cmd)
			return c
		}
	case *syntax.Subshell:
		return quotedCommand(backgroundCommand, "sh", "-c", shellSource(c.Stmts...))
	}
	return quotedCommand(backgroundCommand, "sh", "-c", shellSource(&syntax.Stmt{Cmd: cmd}))
}

// replaceLastBackgroundPID replaces $! by newestBackgroundPIDCommand, because the shell interpreter does not support
// $!.
func replaceLastBackgroundPID(parts []syntax.WordPart) {
	for i, p := range parts {
		if e, ok := p.(*syntax.ParamExp); ok && e.Param != nil && e.Param.Value == "!" {
			parts[i] = &syntax.CmdSubst{Stmts: []*syntax.Stmt{{Cmd: quotedCommand(newestBackgroundPIDCommand)}}}
		}
	}
}

// shellSource returns the text of statements.
func shellSource(stmts ...*syntax.Stmt) string {
	var b strings.Builder
	for _, s := range stmts {
		if err := syntax.NewPrinter().Print(&b, s); err != nil {
			panic(err)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// quotedWord returns a text as a quoted word of a script.
func quotedWord(text string) *syntax.Word {
	return &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: text}}}
}

// quotedCommand returns a command that consists of quoted words.
func quotedCommand(texts ...string) *syntax.CallExpr {
	c := &syntax.CallExpr{}
	for _, text := range texts {
		c.Args = append(c.Args, quotedWord(text))
	}
	return c
}

// replaceBuiltins replaces the names of those builtin commands of the interpreter that do not work on Windows or differ
// from POSIX.
func replaceBuiltins(_ context.Context, args []string) ([]string, error) {
	switch {
	case args[0] == "echo":
		args[0] = echoCommand
	case args[0] == "wait":
		args[0] = waitCommand
	case args[0] == "kill":
		args[0] = killCommand
	case args[0] == "trap" && args[len(args)-1] != "EXIT": // Windows has no signals
		return []string{"true"}, nil
	}
	return args, nil
}
