package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/runner/cmdline"
)

// pipeBufferBytes is the capacity of a pipe and the size of one read, in bytes.
const pipeBufferBytes = 32 << 10

// start starts the command. If it fails, the result contains the reason.
func (r *runningCommand) start() bool {
	r.startedAt, r.awakeTimeAtStart = time.Now(), r.worker.systemCalls.awakeTime()
	r.result.StartedAt, r.result.EndedAt = r.startedAt, r.startedAt
	std := [3]windows.Handle{r.worker.nullDeviceHandle, 0, 0}
	defer func() { // the command has copies of these handles, so close those of this process
		if closeHandles(std[1], std[2]); std[0] != r.worker.nullDeviceHandle {
			closeHandles(std[0])
		}
	}()
	err := r.prepareHandles(&std)
	if err == nil {
		err = r.startMainProcess(std)
	}
	if err != nil {
		r.recordStartFailure(err)
		return false
	}
	r.openPipeCount = len(r.outputPipes)
	for i := range r.outputPipes {
		r.ioGoroutines.Go(func() { r.readPipe(i) })
	}
	if r.stdinPipe != nil {
		r.ioGoroutines.Go(func() {
			io.WriteString(r.stdinPipe, r.command.Stdin) // returns early if the command closes its standard input
			r.stdinPipe.Close()
		})
	}
	r.result.PID = int(r.tree.mainPID)
	r.worker.mu.Lock()
	r.worker.tree = r.tree
	r.worker.mu.Unlock()
	r.command.OnForked(r.result.PID, r.startedAt)
	return true
}

// prepareHandles creates the handles that the command inherits, and its job object.
func (r *runningCommand) prepareHandles(stdHandles *[3]windows.Handle) (err error) {
	if r.command.RunAs != nil {
		return errors.New("commands cannot run as another account on Windows")
	}
	switch {
	case r.command.StdinFile != "":
		if stdHandles[0], err = openRegularFile(r.command.StdinFile); err != nil {
			return &jobFieldError{"stdin_file", err, IsPermanentError(err)}
		}
	case r.command.Stdin != "":
		if r.stdinPipe, stdHandles[0], err = createPipe(windows.PIPE_ACCESS_OUTBOUND); err != nil {
			return err
		}
	}
	for i := range r.outputPipes {
		if r.outputPipes[i], stdHandles[1+i], err = createPipe(windows.PIPE_ACCESS_INBOUND); err != nil {
			return err
		}
	}
	var unenforcedLimits []string
	if r.command.MaxOpenFiles != 0 {
		unenforcedLimits = append(unenforcedLimits, "nofile")
	}
	if r.command.NoNewPrivileges {
		unenforcedLimits = append(unenforcedLimits, "no_new_privileges")
	}
	r.result.UnenforcedLimitNames = strings.Join(unenforcedLimits, ", ")
	if r.tree, err = newTree(r.worker.systemCalls, r.command.Cookie, r.command.Limits); err == nil && r.command.Nice != 0 {
		err = r.tree.setNice(r.command.Nice)
	}
	return err
}

// startMainProcess starts the main process inside the tree's job object. The process inherits its three standard
// handles and no other handle.
func (r *runningCommand) startMainProcess(stdHandles [3]windows.Handle) error {
	base, err := r.buildEnv()
	if err != nil {
		return err
	}
	cwd, err := openWorkingDir(r.command.WorkingDir)
	if err != nil {
		return &jobFieldError{"cwd", err, IsPermanentError(err)}
	}
	defer windows.CloseHandle(cwd) // the open handle keeps the directory until the program runs in it
	env := commandEnvironment(base, r.command.Cookie)
	block, err := encodeEnvBlock(env)
	if err != nil {
		return err
	}
	path, line, err := r.commandLine(env)
	if err != nil {
		return err
	}
	path16, pathErr := windows.UTF16PtrFromString(path)
	line16, lineErr := windows.UTF16PtrFromString(line)
	var dir *uint16
	if r.command.WorkingDir != "" {
		dir, err = windows.UTF16PtrFromString(r.command.WorkingDir)
	}
	if err := errors.Join(pathErr, lineErr, err); err != nil {
		return err
	}
	attributes, err := windows.NewProcThreadAttributeList(2)
	if err != nil {
		return err
	}
	defer attributes.Delete()
	err = errors.Join(
		attributes.Update(processAttributeJobList, unsafe.Pointer(&r.tree.jobHandle), unsafe.Sizeof(r.tree.jobHandle)),
		attributes.Update(processAttributeHandleList, unsafe.Pointer(&stdHandles[0]), unsafe.Sizeof(stdHandles)))
	if err != nil {
		return err
	}
	info := windows.StartupInfoEx{ProcThreadAttributeList: attributes.List()}
	info.Cb = uint32(unsafe.Sizeof(info))
	info.Flags = windows.STARTF_USESTDHANDLES
	info.StdInput, info.StdOutput, info.StdErr = stdHandles[0], stdHandles[1], stdHandles[2]
	const flags = windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_UNICODE_ENVIRONMENT |
		windows.EXTENDED_STARTUPINFO_PRESENT
	var processInfo windows.ProcessInformation
	if err := r.worker.systemCalls.createProcess(path16, line16, nil, nil, true, flags, &block[0], dir, &info.StartupInfo,
		&processInfo); err != nil {
		return r.memoryLimitError(ExplainBlockedProgram(path, err))
	}
	windows.CloseHandle(processInfo.Thread)
	r.tree.mainHandle, r.tree.mainPID = processInfo.Process, processInfo.ProcessId
	return nil
}

// commandLine returns the path of the program and its command line. For a batch file, it returns the path of cmd.exe
// and a command line with which cmd.exe runs the file.
func (r *runningCommand) commandLine(env []string) (path, commandLine string, err error) {
	path, err = findProgram(r.command.Argv[0], env, r.command.WorkingDir)
	if err != nil {
		return "", "", err
	}
	argv := r.command.Argv
	if cmdline.IsBatchFile(path) {
		argv = append([]string{path}, argv[1:]...)
		systemDir, err := windows.GetSystemDirectory()
		if err != nil {
			return "", "", err
		}
		path = systemDir + `\cmd.exe`
	}
	if isCmdExe(path) && isUNCPath(r.command.WorkingDir) {
		return "", "",
			&jobFieldError{"cwd", fmt.Errorf("cmd.exe cannot run in the network folder %s; begin the command with "+
				"\"pushd %[1]s &&\" and use --no-cwd", r.command.WorkingDir), false}
	}
	commandLine, err = cmdline.Encode(argv)
	return path, commandLine, err
}

// memoryLimitError adds an explanation to err, the error of starting a program, if the command's own memory limit is
// the probable cause. This is the case if err means a lack of memory, but the machine has at least as much free memory
// as the limit.
func (r *runningCommand) memoryLimitError(err error) error {
	if l := r.command.Limits.MemoryBytes; l > 0 && isAnyErrorCode(err, outOfMemoryErrors) &&
		r.worker.systemCalls.freeMemoryBytes() >= uint64(l) {
		return limitError("memory", errors.New("the limit is too low for the program to start; use a higher limit"))
	}
	return err
}

// isAnyErrorCode reports whether err is one of the errors in codes.
func isAnyErrorCode(err error, codes []syscall.Errno) bool {
	return slices.ContainsFunc(codes, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// inheritableSecurityAttributes makes a new handle inheritable. A command still inherits only the handles that
// startMainProcess lists.
var inheritableSecurityAttributes = windows.SecurityAttributes{
	Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), InheritHandle: 1}

// openInheritableFile opens a file whose handle a command may inherit. The path may name a pipe of another program. The
// security flags keep that program from acting with the rights of this account.
func openInheritableFile(path string, access, flags uint32) (windows.Handle, error) {
	return openExistingFile(path, access, flags|windows.SECURITY_SQOS_PRESENT|windows.SECURITY_IDENTIFICATION,
		&inheritableSecurityAttributes)
}

// openExistingFile opens an existing file or directory. Other processes can still change or remove it.
func openExistingFile(path string, access, flags uint32, securityAttributes *windows.SecurityAttributes) (
	windows.Handle, error) {
	path16, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	const shareMode = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	h, err := windows.CreateFile(path16, access, shareMode, securityAttributes, windows.OPEN_EXISTING, flags, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return h, nil
}

// ownerOnlySecurityAttributes grants rights on a pipe only to the account of this process.
var ownerOnlySecurityAttributes = sync.OnceValues(func() (*windows.SecurityAttributes, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;;GA;;;" + user.User.Sid.String() + ")")
	if err != nil {
		return nil, err
	}
	return &windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})),
		SecurityDescriptor: sd}, nil
})

// createPipe creates a pipe to or from a command. The command gets childEnd, an ordinary handle. Closing parentEnd ends
// a read or write that blocks on it.
func createPipe(access uint32) (parentEnd *os.File, childEnd windows.Handle, err error) {
	rights, err := ownerOnlySecurityAttributes()
	name := `\\.\pipe\queuectl-` + rand.Text()
	var h windows.Handle
	if err == nil {
		h, err = windows.CreateNamedPipe(windows.StringToUTF16Ptr(name),
			access|windows.FILE_FLAG_OVERLAPPED|windows.FILE_FLAG_FIRST_PIPE_INSTANCE,
			windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, 1, pipeBufferBytes, pipeBufferBytes, 0, rights)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cannot create a pipe for the job's input or output: %w", err)
	}
	parentEnd = os.NewFile(uintptr(h), name)
	mode := uint32(windows.GENERIC_WRITE | windows.FILE_READ_ATTRIBUTES)
	if access == windows.PIPE_ACCESS_OUTBOUND {
		mode = windows.GENERIC_READ | windows.FILE_WRITE_ATTRIBUTES
	}
	if childEnd, err = openInheritableFile(name, mode, 0); err != nil {
		parentEnd.Close()
		return nil, 0, err
	}
	return parentEnd, childEnd, nil
}

// isPipeOpen reports whether the other end of a pipe is still open.
func isPipeOpen(f *os.File) (isOpen bool) {
	c, err := f.SyscallConn()
	if err != nil {
		return false
	}
	err = c.Control(func(fd uintptr) {
		ok, _, _ := procPeekNamedPipe.Call(fd, 0, 0, 0, 0, 0)
		isOpen = ok != 0
	})
	return err == nil && isOpen
}

// openRegularFile opens a regular file that a command names. The command can inherit the handle.
func openRegularFile(path string) (windows.Handle, error) {
	// FILE_FLAG_BACKUP_SEMANTICS also opens a directory, which the code below then rejects with a clear error.
	h, err := openInheritableFile(path, windows.GENERIC_READ, windows.FILE_FLAG_BACKUP_SEMANTICS)
	if err != nil {
		return 0, err
	}
	var info windows.ByHandleFileInformation
	kind, err := windows.GetFileType(h)
	if err == nil && kind == windows.FILE_TYPE_DISK {
		err = windows.GetFileInformationByHandle(h, &info)
	}
	if err == nil && (kind != windows.FILE_TYPE_DISK || info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0) {
		err = UnusablePathError(path + " is not a regular file")
	}
	if err != nil {
		windows.CloseHandle(h)
		return 0, err
	}
	return h, nil
}

// recordStartFailure records in the result why a command did not start. Unless the reason is a shortage of resources,
// the command itself is wrong, and the exit code is the one that a shell would return.
func (r *runningCommand) recordStartFailure(err error) {
	r.result.EndedAt, r.result.LoginSessionWasEnding = time.Now(), r.worker.systemCalls.isSessionEnding()
	if errors.As(err, new(*jobNameTakenError)) || isAnyErrorCode(err, resourceShortageErrors) ||
		isAnyErrorCode(err, outOfMemoryErrors) {
		r.result.ResourceShortage = true
		r.result.Error = fmt.Sprintf("start: %v", err)
		return
	}
	r.result.ExitCode = 126
	if field, ok := errors.AsType[*jobFieldError](err); ok {
		r.result.StartFailedPermanently, r.result.Error = field.isPermanent, field.Error()
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		r.result.ExitCode = 127
	}
	if errors.Is(err, windows.ERROR_BAD_EXE_FORMAT) {
		err = UnusablePathError("not a program that Windows can run")
	}
	r.result.StartFailedPermanently, r.result.Error = IsPermanentError(err),
		fmt.Sprintf("cannot start %s: %v", r.command.Argv[0], err)
}

// resourceShortageErrors lists the errors for a lack of processes, handles or kernel memory, and internal errors of
// Windows. None of these errors is the command's fault. outOfMemoryErrors lists the errors that mean that a program did
// not get enough memory.
var (
	resourceShortageErrors = []syscall.Errno{
		windows.ERROR_TOO_MANY_OPEN_FILES, windows.ERROR_NO_PROC_SLOTS, windows.ERROR_MAX_THRDS_REACHED,
		windows.ERROR_NO_SYSTEM_RESOURCES, windows.ERROR_NONPAGED_SYSTEM_RESOURCES, windows.ERROR_PAGED_SYSTEM_RESOURCES,
		windows.ERROR_NO_MORE_USER_HANDLES, windows.ERROR_INTERNAL_ERROR,
	}
	outOfMemoryErrors = []syscall.Errno{
		windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_OUTOFMEMORY, windows.ERROR_WORKING_SET_QUOTA,
		windows.ERROR_PAGEFILE_QUOTA, windows.ERROR_COMMITMENT_LIMIT, windows.ERROR_NOT_ENOUGH_QUOTA,
	}
)

// openWorkingDir opens the working directory of a command, with the access that the command needs. If the
// command may not enter the directory, openWorkingDir returns an error, because Windows would start the
// program in another directory. It returns 0 if dir is "". The caller closes the handle.
func openWorkingDir(dir string) (windows.Handle, error) {
	if dir == "" {
		return 0, nil
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return 0, err // the error of os.Stat is usually more exact than that of CreateFile
	case !info.IsDir():
		return 0, fmt.Errorf("%s is %w", dir, errNotDirectory)
	}
	return openExistingFile(dir, windows.FILE_TRAVERSE|windows.SYNCHRONIZE, windows.FILE_FLAG_BACKUP_SEMANTICS, nil)
}

// isCmdExe reports whether a program is cmd.exe.
func isCmdExe(path string) bool { return strings.EqualFold(filepath.Base(path), "cmd.exe") }

// isUNCPath reports whether a directory has a UNC path.
func isUNCPath(dir string) bool {
	dir = strings.ToUpper(strings.ReplaceAll(dir, "/", `\`))
	return strings.HasPrefix(dir, `\\?\UNC\`) || strings.HasPrefix(dir, `\\`) && !strings.HasPrefix(dir, `\\?\`) &&
		!strings.HasPrefix(dir, `\\.\`)
}
