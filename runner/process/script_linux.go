package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/runas"
)

// shellProgram is the shell that runs scripts that name no interpreter. execvp(3) uses the same shell.
const shellProgram = "/bin/sh"

// scriptHeadBytes is how many bytes of a file the kernel reads to find its interpreter (BINPRM_BUF_SIZE).
const scriptHeadBytes = 256

// programHeadBytes is how many bytes of a program are read to find its dynamic loader.
const programHeadBytes = 4 << 10

// maxInterpreterChain limits the length of a chain of interpreters, like the kernel does.
const maxInterpreterChain = 5

// mayBeShellScript reports whether a file that the kernel cannot execute may be a shell script. fileHead is the start
// of the file. If the first line contains a NUL, the file is a binary program for another machine. Common shells use
// the same rule.
func mayBeShellScript(fileHead []byte) bool {
	line, _, _ := bytes.Cut(fileHead[:min(len(fileHead), scriptHeadBytes)], []byte("\n"))
	return bytes.IndexByte(line, 0) < 0
}

// needsShell reports whether /bin/sh must run the program, which the kernel cannot execute. If the file
// cannot be read, needsShell returns true, so that the shell reports the error.
func (r *runningCommand) needsShell() bool {
	head, err := runas.LookUpAs(r.command.RunAs, func() ([]byte, error) {
		return readRegularFile(r.resolvePath(r.programPath), programHeadBytes)
	}, nil)
	return err != nil || mayBeShellScript(head)
}

// resolvePath resolves a path relative to the command's working directory.
func (r *runningCommand) resolvePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.command.WorkingDir, path)
}

// interpreterErrors lists the errors that execve can return because of the program's interpreter.
var interpreterErrors = []error{unix.ENOENT, unix.EACCES, unix.ENOTDIR, unix.ELOOP}

// explainInterpreterError explains the error of a failed execve. The kernel returns the same error numbers for a
// problem with the program itself and for a problem with its interpreter or dynamic loader. If the interpreter or the
// loader cannot be executed, the returned error names it. Otherwise explainInterpreterError returns err.
func (r *runningCommand) explainInterpreterError(err error) error {
	isErr := func(target error) bool { return errors.Is(err, target) }
	if r.programPath == "" || !slices.ContainsFunc(interpreterErrors, isErr) {
		return err
	}
	found, lookErr := runas.LookUpAs(r.command.RunAs, func() (error, error) { return r.checkInterpreters(), nil }, nil)
	if found == nil || lookErr != nil {
		return err
	}
	return found
}

// checkInterpreters checks that the program's interpreter can be executed. If the interpreter is a script
// too, it also checks the interpreter of that script, and so on. It returns the first error, or nil.
func (r *runningCommand) checkInterpreters() error {
	path := r.programPath
	var chain []fs.FileInfo
	for range maxInterpreterChain {
		head, err := readRegularFile(r.resolvePath(path), programHeadBytes)
		if err != nil {
			return nil
		}
		next := interpreterOf(head)
		if next == "" {
			return nil
		}
		if err := checkExecutable(r.resolvePath(next)); err != nil {
			return fmt.Errorf("interpreter %q: %w%s", next, err, interpreterHint(next, path))
		}
		if info, err := os.Stat(r.resolvePath(path)); err == nil {
			chain = append(chain, info)
		}
		info, err := os.Stat(r.resolvePath(next))
		if err == nil && slices.ContainsFunc(chain, func(earlier fs.FileInfo) bool { return os.SameFile(earlier, info) }) {
			return fmt.Errorf("interpreter %q leads back to %s; after #!, name a program such as /bin/sh", next, r.programPath)
		}
		path = next
	}
	return nil
}

// checkExecutable returns the reason why the kernel refuses to execute a file, or nil. It does not check the
// content of the file.
func checkExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return UnusablePathError("is a directory")
	case err == nil:
		return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// interpreterHint returns advice about an interpreter that cannot be executed, or "" if it has no advice.
func interpreterHint(interpreter, script string) string {
	switch {
	case strings.HasSuffix(interpreter, "\r"):
		return fmt.Sprintf("; the first line of %s ends with a carriage return: save it with Unix line endings", script)
	case !filepath.IsAbs(interpreter):
		return fmt.Sprintf("; it is relative to the working directory, not to %s; write its whole path after #!", script)
	}
	return ""
}

// interpreterOf returns the interpreter of a file: the name after #! in a script, or the dynamic loader of a program.
// fileHead is the start of the file. interpreterOf returns "" if fileHead names no interpreter.
func interpreterOf(fileHead []byte) string {
	if name, ok := bytes.CutPrefix(fileHead[:min(len(fileHead), scriptHeadBytes)], []byte("#!")); ok {
		name = bytes.TrimLeft(name, " \t")
		if end := bytes.IndexAny(name, " \t\n\x00"); end >= 0 {
			name = name[:end]
		}
		return string(name)
	}
	if bytes.HasPrefix(fileHead, []byte("\x7fELF")) {
		return dynamicLoaderOf(fileHead)
	}
	return ""
}

// dynamicLoaderOf returns the dynamic loader that an ELF program names (elf(5)). fileHead is the start of the program.
// dynamicLoaderOf returns "" if fileHead does not contain the name.
func dynamicLoaderOf(fileHead []byte) string {
	number := func(offset uint64, size int) uint64 {
		if offset > uint64(len(fileHead)) || len(fileHead[offset:]) < size {
			return 0
		}
		switch size {
		case 2:
			return uint64(binary.NativeEndian.Uint16(fileHead[offset:]))
		case 4:
			return uint64(binary.NativeEndian.Uint32(fileHead[offset:]))
		}
		return binary.NativeEndian.Uint64(fileHead[offset:])
	}
	// The positions of fields in the file header and in an entry of the program header table differ between 32-bit and
	// 64-bit programs.
	const class, class64, typeInterp = 4, 2, 3
	word, sizeAt, countAt, offsetAt, lengthAt := 4, uint64(42), uint64(44), uint64(4), uint64(16)
	table := uint64(28)
	if number(class, 2)&0xff == class64 {
		word, sizeAt, countAt, offsetAt, lengthAt = 8, 54, 56, 8, 32
		table = 32
	}
	entry := number(table, word)
	for range number(countAt, 2) {
		if number(entry, 4) == typeInterp {
			first, length := number(entry+offsetAt, word), number(entry+lengthAt, word)
			if first > uint64(len(fileHead)) || length > uint64(len(fileHead))-first {
				return ""
			}
			return strings.TrimRight(string(fileHead[first:first+length]), "\x00")
		}
		entry += number(sizeAt, 2)
	}
	return ""
}
