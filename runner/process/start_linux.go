package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/tune"
	"github.com/queuectl/queuectl/runner/runas"
)

// inheritedUmask is the umask of this process, set by PrepareToRunCommands. To start a command with another umask,
// forkExec uses a thread that has a separate umask. See docs/decisions/0053.
const inheritedUmask = 0o022

// start starts the command. If it fails, the result contains the reason.
func (r *runningCommand) start() bool {
	r.startedAt = time.Now()
	r.result.StartedAt, r.result.EndedAt = r.startedAt, r.startedAt
	stdin := r.worker.nullDeviceHandle
	var err error
	r.programPath, err = r.resolveProgram()
	if err == nil {
		stdin, err = r.openStdin()
	}
	var env []string
	if err == nil {
		env, err = r.buildEnv()
	}
	if stdin != r.worker.nullDeviceHandle {
		defer unix.Close(stdin)
	}
	switch {
	case err != nil:
	case r.command.TTY:
		err = r.openTerminal()
	default:
		err = r.openPipes()
	}
	if err != nil {
		r.recordStartFailure(err)
		return false
	}
	attr := &syscall.ProcAttr{
		Dir:   r.command.WorkingDir,
		Env:   append(env, CookieEnvVar+"="+r.command.Cookie),
		Files: []uintptr{uintptr(stdin), uintptr(r.pipeWriteEnds[0]), uintptr(r.pipeWriteEnds[1])},
		Sys: &syscall.SysProcAttr{Setsid: r.worker.startsCommandsInSessions, Setpgid: !r.worker.startsCommandsInSessions,
			PidFD: &r.pidfd},
	}
	if r.command.TTY {
		tty := uintptr(r.pipeWriteEnds[0])
		attr.Files = []uintptr{tty, tty, tty}
		attr.Sys.Setsid, attr.Sys.Setctty, attr.Sys.Setpgid = true, true, false
	}
	if id := r.command.RunAs; id != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: id.UID, Gid: id.GID, Groups: id.Groups}
	}
	if err = r.startProgram(attr); err != nil {
		r.recordStartFailure(err)
		return false
	}
	r.result.PID = r.pid
	r.worker.mu.Lock()
	r.worker.pid = r.pid
	r.worker.mu.Unlock()
	r.command.OnForked(r.pid, r.forkedAt)
	return true
}

// startProgram starts the program. Like execvp(3), it uses /bin/sh to run a script that names no interpreter.
func (r *runningCommand) startProgram(attr *syscall.ProcAttr) error {
	path, argv := r.programPath, r.command.Argv
	err := r.startProcess(path, argv, attr)
	// A failed start may mean that an earlier command has removed or changed the control group. So try once more in a new
	// group.
	if r.worker.cgroup != nil && errors.As(err, new(*runas.ResourceShortageError)) {
		r.worker.abandonCgroup()
		if err = r.worker.openResources(); err == nil {
			err = r.startProcess(path, argv, attr)
		}
	}
	if errors.Is(err, unix.ENOEXEC) && r.needsShell() {
		err = r.startProcess(shellProgram, slices.Concat([]string{shellProgram, path}, argv[1:]), attr)
	}
	return err
}

// pidfdNotCreated is the value of pidfd before a start. If syscall.ForkExec creates a child, it replaces this value by
// the child's descriptor or, if the start fails later, by -1.
const pidfdNotCreated = -2

// startProcess starts the program, in the worker's control group if the worker has one. An error in the child
// counts as the command's fault, because the child already has the command's account and directory.
func (r *runningCommand) startProcess(path string, argv []string, attr *syscall.ProcAttr) (err error) {
	if b := r.worker.cgroup; b != nil && b.hasRunEarlierCommand && r.command.Limits.Tasks != 0 {
		r.worker.abandonCgroup()
		if err := r.worker.openResources(); err != nil {
			return err
		}
	}
	missing, err := r.setCgroupLimits()
	if err != nil {
		return &runas.ResourceShortageError{Err: err}
	}
	if r.command.needsLimiter(missing) {
		if r.limiter, err = r.newLimiter(path, attr.Env, missing); err != nil {
			return &runas.ResourceShortageError{Err: err}
		}
		path, argv, attr = "/proc/self/exe", limiterArgs, r.limiter.procAttr(attr)
	}
	r.pidfd = pidfdNotCreated
	if b := r.worker.cgroup; b != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD, b.hasRunEarlierCommand = true, b.dirFD, true
		if b.countsKillsOfAllGroups {
			b.takeOOMKills() // do not count OOM kills of earlier commands in this group
		}
	}
	number := globalOrphanTable.beginFork()
	r.forkedAt = time.Now()
	r.pid, err = forkExec(path, argv, attr, r.command.Umask)
	globalOrphanTable.endFork(number, r.pid)
	if err != nil {
		switch {
		case r.pidfd == pidfdNotCreated:
			err = &runas.ResourceShortageError{Err: err}
		case r.limiter != nil:
			self, _ := os.Executable()
			err = fmt.Errorf("the job's account cannot execute %s, which sets the job's limits: %v; check the file's "+
				"permissions", self, err)
		}
		r.limiter.close()
		r.limiter, r.pidfd = nil, -1
		return err
	}
	if r.limiter != nil {
		closeDescriptors(&r.limiter.execRequestFD, &r.limiter.limiterSocketFD) // the limiter has inherited copies
	}
	r.result.UnenforcedLimitNames = strings.Join(missing, ", ")
	return nil
}

// setCgroupLimits sets the limits of the control group. It returns the names of the limits that it cannot
// enforce.
func (r *runningCommand) setCgroupLimits() (unenforcedLimitNames []string, err error) {
	l := r.command.Limits
	if b := r.worker.cgroup; b != nil {
		unenforcedLimitNames, err = b.setLimits(l)
	} else if l != (TreeLimits{}) {
		unenforcedLimitNames = []string{"memory", "cpus", "tasks"}
	}
	requested := map[string]bool{"memory": l.MemoryBytes != 0, "cpus": l.CPUs != 0, "tasks": l.Tasks != 0}
	return slices.DeleteFunc(unenforcedLimitNames, func(name string) bool { return !requested[name] }), err
}

// openPipes creates the output pipes, and makes the command's account their owner. Otherwise the command could not open
// /dev/stdout.
func (r *runningCommand) openPipes() error {
	for i := range r.outputPipes {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return &runas.ResourceShortageError{Err: fmt.Errorf("cannot create a pipe for the job's output: %w", err)}
		}
		r.outputPipes[i], r.pipeWriteEnds[i] = p[0], p[1]
		if err := r.chownToCommandAccount(p[1]); err != nil {
			return err
		}
	}
	return nil
}

// chownToCommandAccount makes the command's account the owner of a file created for the command.
func (r *runningCommand) chownToCommandAccount(fd int) error {
	if r.command.RunAs == nil {
		return nil
	}
	return runas.ClassifyAccountSwitchError(unix.Fchown(fd, int(r.command.RunAs.UID), int(r.command.RunAs.GID)))
}

// openStdin opens the command's standard input.
func (r *runningCommand) openStdin() (fd int, err error) {
	if r.command.StdinFile != "" {
		open := func() (int, error) { return openRegularFile(r.command.StdinFile) }
		fd, err = runas.LookUpAs(r.command.RunAs, open, func(fd int) { unix.Close(fd) })
		switch {
		case err == nil:
			return fd, nil
		case areDescriptorsExhausted(err), errors.As(err, new(*runas.ResourceShortageError)):
			return r.worker.nullDeviceHandle, &runas.ResourceShortageError{Err: err}
		}
		return r.worker.nullDeviceHandle, &jobFieldError{"stdin_file", err, IsPermanentError(err)}
	}
	if r.command.Stdin == "" {
		return r.worker.nullDeviceHandle, nil
	}
	fd, err = createMemoryFile("stdin", []byte(r.command.Stdin))
	if err != nil {
		err = fmt.Errorf("cannot create a memory file for the job's standard input: %w", err)
		return r.worker.nullDeviceHandle, &runas.ResourceShortageError{Err: err}
	}
	return fd, r.chownToCommandAccount(fd)
}

// areDescriptorsExhausted reports whether this process or the system has no file descriptors left. err is the
// error of opening a file of the command. A user's file system can return the same error numbers, so
// areDescriptorsExhausted also checks whether this process can open another file.
func areDescriptorsExhausted(err error) bool {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return false
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	closeDescriptors(&fd)
	return err != nil
}

// openRegularFile opens a regular file that a command names. It refuses files in /proc.
func openRegularFile(path string) (int, error) {
	// With O_NONBLOCK, opening a FIFO does not wait for a writer.
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	// RESOLVE_NO_MAGICLINKS forbids links such as /proc/PID/fd/3, through which the command could read any file that this
	// process has open.
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	// The system call openat2 is missing before Linux 5.6, and some sandboxes block it.
	if err == unix.ENOSYS || err == unix.EPERM {
		fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	var fileSystem unix.Statfs_t
	switch err = errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &fileSystem)); {
	case err != nil:
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		err = UnusablePathError(path + " is not a regular file")
	case fileSystem.Type == unix.PROC_SUPER_MAGIC: // the content of such a file can be about this process
		err = UnusablePathError(fmt.Sprintf("%s is a /proc file, not a regular file", path))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// maxBusyProgramRetries is how many times the start of a program is retried if the program is open for writing
// (ETXTBSY).
const maxBusyProgramRetries = 3

// forkExec starts a program with the given umask. If the umask is not inheritedUmask, forkExec sets it on a thread
// whose umask is separate from that of the other threads. Afterwards, forkExec sets the thread's umask to
// inheritedUmask again.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, umask int) (pid int, err error) {
	retries := 0
	start := func() (int, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tune.RestoreTimerSlack()
		defer raiseOOMScore()()
		for {
			pid, err := syscall.ForkExec(path, argv, attr)
			if err != syscall.ETXTBSY || retries == maxBusyProgramRetries {
				return pid, err
			}
			// Another child that this process is starting may have the program's file open for writing until
			// the child's exec. So try again.
			retries++
			time.Sleep(time.Millisecond)
		}
	}
	if umask == inheritedUmask {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, fmt.Errorf("cannot set the umask: %w", err)
	}
	unix.Umask(umask)
	defer unix.Umask(inheritedUmask)
	return start()
}

// recordStartFailure records in the result why a command did not start. Unless the reason is a shortage of resources,
// the command itself is wrong, and the exit code is the one that a shell would return.
func (r *runningCommand) recordStartFailure(err error) {
	r.result.EndedAt = time.Now()
	if errors.As(err, new(*runas.ResourceShortageError)) {
		r.result.ResourceShortage, r.result.StartHung = true, errors.Is(err, runas.ErrLookUpHung)
		r.result.Error = "start: " + err.Error() + startErrorLimitHint(err)
		return
	}
	r.result.ExitCode, r.result.StartHung = 126, errors.Is(err, runas.ErrLookUpHung)
	if field, ok := errors.AsType[*jobFieldError](err); ok {
		r.result.StartFailedPermanently, r.result.Error = field.isPermanent, field.Error()
		return
	}
	_, dirErr := runas.LookUpAs(r.command.RunAs, func() (any, error) { return nil, checkWorkingDir(r.command.WorkingDir) },
		nil)
	if dirErr != nil && !r.result.StartHung && !errors.As(dirErr, new(*runas.ResourceShortageError)) {
		r.result.StartHung = errors.Is(dirErr, runas.ErrLookUpHung)
		r.result.StartFailedPermanently, r.result.Error = IsPermanentError(dirErr), fmt.Sprintf("cwd: %v", dirErr)
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		r.result.ExitCode = 127
	}
	r.result.StartFailedPermanently = IsPermanentError(err)
	r.result.Error = fmt.Sprintf("cannot start %s: %v", r.command.Argv[0], r.explainInterpreterError(err)) +
		startErrorLimitHint(err)
}

// checkWorkingDir returns the reason why a command cannot use dir as its working directory, or nil.
func checkWorkingDir(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is %w", dir, errNotDirectory)
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
}

// resolveProgram returns the path of the command's program.
func (r *runningCommand) resolveProgram() (path string, err error) {
	c, program := r.command, r.command.Argv[0]
	if !strings.Contains(program, "/") {
		return runas.LookUpAs(c.RunAs, func() (string, error) {
			return findInPath(program, c.Env, c.WorkingDir, time.Now().Add(runas.LookUpTimeout))
		}, nil)
	}
	if strings.HasPrefix(program, "-") {
		return "./" + program, nil // a shell that runs this script would parse a leading "-" as an option
	}
	return program, nil // if this path is wrong, execve will return the error
}

// findInPath finds a program in the command's PATH, as execvp does. It stops at the deadline, because
// a PATH may contain a hundred thousand directories.
func findInPath(name string, env []string, dir string, deadline time.Time) (string, error) {
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var deniedErr error
	for _, entry := range filepath.SplitList(path) {
		if time.Now().After(deadline) {
			return "", runas.ErrLookUpHung
		}
		if !filepath.IsAbs(entry) {
			entry = filepath.Join(dir, entry)
		}
		candidate := entry + "/" + name
		switch err := unix.Faccessat(unix.AT_FDCWD, candidate, unix.X_OK, unix.AT_EACCESS); err {
		case unix.ENOENT, unix.ENOTDIR:
		case nil:
			if info, err := os.Stat(candidate); err == nil && !info.IsDir() {
				return candidate, nil
			}
		default:
			deniedErr = err
		}
	}
	return "", cmp.Or(deniedErr, fmt.Errorf("%w in PATH", fs.ErrNotExist))
}
