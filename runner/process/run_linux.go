package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/timerslack"
	"github.com/queuectl/queuectl/output"
)

// inheritedUmask is the umask that needs no thread of its own; Prepare sets it.
const inheritedUmask = 0o022

// Worker runs one command after another. Make it with NewWorker; Run is for one
// goroutine, Kill for any.
type Worker struct {
	null   int // /dev/null
	wake   int // eventfd: Kill interrupts the poll
	buffer []byte

	mu      sync.Mutex
	running bool
	pid     int  // of the main process
	killed  kill // asked for by Kill

	stuck []proc // what Run has given up; of its goroutine

	cgroups *Cgroups // nil if there are none
	box     *box     // nil before the first command; written with mu by Run's goroutine
}

type kill struct {
	asked bool
	cause int
	grace time.Duration
}

// NewWorker makes a worker, whose commands get a control group if there are any. It
// holds nothing until its first command.
func NewWorker(c *Cgroups) *Worker { return &Worker{null: -1, wake: -1, cgroups: c} }

// open takes what the worker holds from its first command on.
func (w *Worker) open() (err error) {
	if w.null < 0 {
		if w.null, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open /dev/null: %w", err)
		}
	}
	if w.wake < 0 {
		if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return fmt.Errorf("make an eventfd: %w", err)
		}
		w.buffer = make([]byte, 64<<10)
	}
	if w.cgroups != nil && w.box == nil {
		b, err := w.cgroups.box()
		if err != nil {
			return &boxError{err}
		}
		w.setBox(b)
	}
	return nil
}

// boxError says that there is no control group for a command, which is not its fault.
type boxError struct{ error }

// Error says what could not be made.
func (e *boxError) Error() string { return "make a control group: " + e.error.Error() }

func (w *Worker) setBox(b *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.box = b
}

// dropBox gives the control group up, because processes stay in it.
func (w *Worker) dropBox() {
	if b := w.box; b != nil {
		w.setBox(nil)
		w.cgroups.drop(b)
	}
}

// tree lists the living processes of the running command's tree, the main one excepted.
func (w *Worker) tree(main int, cookie string) []proc {
	w.mu.Lock()
	b := w.box
	w.mu.Unlock()
	if b != nil {
		return b.procs(main)
	}
	return treeOf(main, cookie)
}

// Close gives back what the worker holds.
func (w *Worker) Close() {
	for _, fd := range []int{w.null, w.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	w.dropBox()
}

// Kill ends the running command's tree: SIGTERM now, SIGKILL after the grace.
// It reports whether it came before the command's end was seen; the result then
// carries the cause. A later Kill may shorten the grace, not change the cause.
func (w *Worker) Kill(cause int, grace time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		return false
	}
	if !w.killed.asked {
		w.killed.cause = cause
	}
	w.killed.asked, w.killed.grace = true, grace
	unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail but when it is set already
	return true
}

// Signal sends a signal to the running command's whole tree, if pid is still the
// command's main process.
func (w *Worker) Signal(pid int, cookie string, number int) {
	others := w.tree(pid, cookie)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.pid != pid {
		return
	}
	unix.Kill(-pid, unix.Signal(number)) // the main process is not reaped, so the group is ours
	for _, p := range others {
		if p.pgid != pid {
			signal(p, unix.Signal(number))
		}
	}
}

// run is one command under way.
type run struct {
	w        *Worker
	c        *Command
	r        *Result
	pid      int
	pidfd    int
	pipes    [2]int // read ends; -1 once at their end
	ends     [2]int // write ends: while they are open, only output and the exit wake the poll
	begun    time.Time
	heard    time.Time // when it last printed
	told     bool
	exited   bool
	termAt   time.Time // SIGTERM was sent
	killAt   time.Time // SIGKILL is due
	killedAt time.Time // SIGKILL was sent for the first time
	graceEnd time.Time // what is left behind is ended
}

// Run runs a command to the end of its tree.
func (w *Worker) Run(c *Command) (result Result) {
	result.ExitCode = -1
	r := &run{w: w, c: c, r: &result, pipes: [2]int{-1, -1}, ends: [2]int{-1, -1}, pidfd: -1}
	defer r.close()
	defer c.Log.Close()
	if err := w.open(); err != nil {
		r.begun = time.Now()
		result.StartedAt = r.begun
		r.startFailed(err)
		return result
	}
	w.mu.Lock()
	w.running, w.pid, w.killed = true, 0, kill{}
	w.mu.Unlock()
	if !r.start() {
		w.mu.Lock()
		w.running = false
		w.mu.Unlock()
		return result
	}
	r.watch()
	r.end()
	return result
}

func (r *run) close() {
	r.letGo()
	for _, fd := range [...]int{r.pipes[0], r.pipes[1], r.pidfd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.killed.asked { // it must not wake the next run
		var drain [8]byte
		unix.Read(r.w.wake, drain[:])
	}
}

// letGo closes our write ends, so that the pipes end with those of the tree.
func (r *run) letGo() {
	for i, fd := range r.ends {
		if fd >= 0 {
			unix.Close(fd)
			r.ends[i] = -1
		}
	}
}

// start starts the command; if it cannot, the result says why.
func (r *run) start() bool {
	r.begun = time.Now()
	r.heard = r.begun
	r.r.StartedAt, r.r.EndedAt = r.begun, r.begun
	stdin := r.w.null
	path, err := r.program()
	if err == nil {
		stdin, err = r.stdin()
	}
	if stdin != r.w.null {
		defer unix.Close(stdin)
	}
	if err == nil {
		err = r.openPipes()
	}
	if err != nil {
		r.startFailed(err)
		return false
	}
	attr := &syscall.ProcAttr{
		Dir:   r.c.Dir,
		Env:   append(r.c.Env, CookieName+"="+r.c.Cookie),
		Files: []uintptr{uintptr(stdin), uintptr(r.ends[0]), uintptr(r.ends[1])},
		Sys:   &syscall.SysProcAttr{Setpgid: true, PidFD: &r.pidfd},
	}
	if id := r.c.As; id != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: id.UID, Gid: id.GID, Groups: id.Groups}
	}
	err = r.fork(path, attr)
	if b := r.w.box; b != nil && b.refuses(err) { // what ran there may have changed it
		r.w.dropBox()
		if err = r.w.open(); err == nil {
			err = r.fork(path, attr)
		}
		if b := r.w.box; b != nil && b.refuses(err) {
			err = &boxError{err}
		}
	}
	if err != nil {
		r.pidfd = -1
		r.startFailed(err)
		return false
	}
	r.r.PID = r.pid
	r.w.mu.Lock()
	r.w.pid = r.pid
	r.w.mu.Unlock()
	r.c.Forked(r.pid, r.begun)
	return true
}

// fork starts the program, in the control group if there is one.
func (r *run) fork(path string, attr *syscall.ProcAttr) (err error) {
	if b := r.w.box; b != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, b.dir
		if b.shared {
			b.ranOut() // what was before is not this command's
		}
	}
	orphans.fork.RLock()
	defer orphans.fork.RUnlock()
	if r.pid, err = forkExec(path, r.c.Argv, attr, r.c.Umask); err == nil {
		own(r.pid, true)
	}
	return err
}

// openPipes makes the pipes of the output. They belong to whom the command runs as, so
// that it can open /dev/stdout.
func (r *run) openPipes() error {
	for i := range r.pipes {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		r.pipes[i], r.ends[i] = p[0], p[1]
		if err := r.give(p[1]); err != nil {
			return err
		}
	}
	return nil
}

// give makes what was made for the command belong to whom it runs as.
func (r *run) give(fd int) error {
	if r.c.As == nil {
		return nil
	}
	return unix.Fchown(fd, int(r.c.As.UID), int(r.c.As.GID))
}

// stdin is a descriptor to read the command's input from.
func (r *run) stdin() (fd int, err error) {
	switch {
	case r.c.StdinFile != "":
		err = as(r.c.As, func() (err error) {
			fd, err = openStdin(r.c.StdinFile)
			return err
		})
		if err != nil {
			return r.w.null, &stdinError{err}
		}
		return fd, nil
	case r.c.Stdin == "":
		return r.w.null, nil
	}
	fd, err = unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return r.w.null, err
	}
	err = errors.Join(unix.Fchmod(fd, 0o600), r.give(fd)) // else whoever else is run could open it by /proc/self/fd
	for rest := []byte(r.c.Stdin); err == nil && len(rest) > 0; {
		var n int
		n, err = unix.Write(fd, rest)
		rest = rest[max(n, 0):]
	}
	if err == nil {
		_, err = unix.Seek(fd, 0, 0)
	}
	return fd, err
}

// stdinError is a command's own fault: its input cannot be read.
type stdinError struct{ error }

// Unwrap is why: a shortage is not the command's fault.
func (e *stdinError) Unwrap() error { return e.error }

func openStdin(path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY // a FIFO would wait for its writer
	// The links of /proc lead to what this process has open, whoever may open that.
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == unix.ENOSYS || err == unix.EPERM { // before Linux 5.6, or a sandbox of then
		fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	var system unix.Statfs_t
	switch err = errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &system)); {
	case err != nil:
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("%s is not a regular file", path)
	case system.Type == unix.PROC_SUPER_MAGIC: // it may be about this process, which is not the job's
		err = fmt.Errorf("%s is a file of the kernel's", path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// forkExec starts a program. A umask other than ours is set on a thread that has
// its file-system attributes to itself and ends with the call.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, umask int) (pid int, err error) {
	busyTries := 3
	start := func() (int, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		timerslack.Restore()
		defer expendable()()
		for {
			pid, err := syscall.ForkExec(path, argv, attr)
			if err != syscall.ETXTBSY || busyTries == 0 {
				return pid, err
			}
			busyTries-- // another fork of ours may hold the just-written file open until its exec
			time.Sleep(time.Millisecond)
		}
	}
	if umask == inheritedUmask {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, err
	}
	unix.Umask(umask)
	defer unix.Umask(inheritedUmask)
	return start()
}

// startFailed sorts what kept a command from starting: our shortage, or its own
// fault with the exit code that a shell would give.
func (r *run) startFailed(err error) {
	r.r.EndedAt = time.Now()
	var box *boxError
	switch {
	case errors.As(err, &box), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		r.r.Shortage = true
		r.r.Error = fmt.Sprintf("start: %v", err)
		return
	}
	r.r.ExitCode = 126
	var stdin *stdinError
	if errors.As(err, &stdin) {
		r.r.Error = fmt.Sprintf("stdin_file: %v", stdin.error)
		return
	}
	if dirErr := as(r.c.As, func() error { return enterable(r.c.Dir) }); dirErr != nil {
		r.r.Error = fmt.Sprintf("cwd: %v", dirErr)
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		r.r.ExitCode = 127
	}
	r.r.Error = fmt.Sprintf("start %s: %v", r.c.Argv[0], err)
}

func enterable(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
}

// program is the path of the command's program.
func (r *run) program() (path string, err error) {
	c := r.c
	if strings.Contains(c.Argv[0], "/") {
		return c.Argv[0], nil // execve says what is wrong with it
	}
	err = as(c.As, func() (err error) {
		path, err = lookPath(c.Argv[0], c.Env, c.Dir)
		return err
	})
	return path, err
}

// lookPath finds a program as execvp does, with the command's own PATH.
func lookPath(name string, env []string, dir string) (string, error) {
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var denied error
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		candidate := folder + "/" + name
		switch err := unix.Faccessat(unix.AT_FDCWD, candidate, unix.X_OK, unix.AT_EACCESS); err {
		case unix.ENOENT, unix.ENOTDIR:
			continue
		case nil:
		default:
			denied = err
			continue
		}
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() {
			return candidate, nil
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%w in PATH", fs.ErrNotExist)
}

// watch reads the output until the main process has ended, enforcing the
// timeout and carrying out kills.
func (r *run) watch() {
	for !r.exited {
		fds := [4]unix.PollFd{
			{Fd: int32(r.pipes[0]), Events: unix.POLLIN},
			{Fd: int32(r.pipes[1]), Events: unix.POLLIN},
			{Fd: int32(r.pidfd), Events: unix.POLLIN},
			{Fd: int32(r.w.wake), Events: unix.POLLIN},
		}
		n, err := unix.Poll(fds[:], r.wait())
		if err != nil && err != unix.EINTR {
			panic("process: poll: " + err.Error()) // the descriptors are ours and open
		}
		if n > 0 {
			for i := range 2 {
				if fds[i].Revents != 0 {
					r.read(i)
				}
			}
			if fds[3].Revents != 0 {
				var drain [8]byte
				unix.Read(r.w.wake, drain[:])
			}
			r.exited = fds[2].Revents != 0
		}
		r.enforce()
	}
}

// wait is how long the poll may take, in milliseconds: until the next deadline.
func (r *run) wait() int {
	next := time.Duration(-1)
	until := func(t time.Time) {
		if d := max(0, time.Until(t)); next < 0 || d < next {
			next = d
		}
	}
	if !r.told {
		until(r.begun.Add(StartedAfter))
	}
	if r.c.Timeout > 0 && r.termAt.IsZero() {
		until(r.begun.Add(r.c.Timeout))
	}
	if r.c.IdleTimeout > 0 && r.termAt.IsZero() {
		until(r.heard.Add(r.c.IdleTimeout))
	}
	if !r.killAt.IsZero() {
		until(r.killAt)
	}
	if next < 0 {
		return -1
	}
	return int(min((next+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// enforce does what is due while the main process runs. Whether a kill or the
// timeout came before the end is decided here alone.
func (r *run) enforce() {
	now := time.Now()
	r.w.mu.Lock()
	killed := r.w.killed
	if r.exited {
		r.w.running = false
	}
	r.w.mu.Unlock()
	if r.exited {
		r.r.EndedAt = now
		if killed.asked && !r.r.TimedOut {
			r.r.Cause = killed.cause
		}
		return
	}
	if !r.told && now.Sub(r.begun) >= StartedAfter {
		r.told = true
		r.c.Started(r.pid, r.begun)
	}
	if killed.asked && (r.termAt.IsZero() || now.Add(killed.grace).Before(r.killAt)) {
		r.terminate(now, killed.grace)
	}
	if r.c.Timeout > 0 && r.termAt.IsZero() && now.Sub(r.begun) >= r.c.Timeout {
		r.r.TimedOut = true
		r.terminate(now, r.c.KillAfter)
	}
	if r.c.IdleTimeout > 0 && r.termAt.IsZero() && now.Sub(r.heard) >= r.c.IdleTimeout {
		r.r.TimedOut, r.r.Silent = true, true
		r.terminate(now, r.c.KillAfter)
	}
	if !r.killAt.IsZero() && !now.Before(r.killAt) {
		if r.killedAt.IsZero() {
			r.killedAt = now
		}
		left := r.killTree()
		r.killAt = now.Add(min(time.Second, r.c.Patience)) // what was just being forked
		if now.Sub(r.killedAt) >= r.c.Patience {
			r.giveUpMain(left)
			r.r.EndedAt, r.r.Cause = now, killed.cause
		}
	}
}

// terminate asks the group to end; a stopped process is woken to hear it.
func (r *run) terminate(now time.Time, grace time.Duration) {
	if r.termAt.IsZero() {
		unix.Kill(-r.pid, unix.SIGTERM) // the main process is not reaped, so the group is ours
		unix.Kill(-r.pid, unix.SIGCONT)
		r.termAt = now
	}
	r.killAt = now.Add(grace)
}

// read takes what a pipe holds, at most a buffer full.
func (r *run) read(i int) {
	n, err := unix.Read(r.pipes[i], r.w.buffer)
	if err == unix.EINTR || err == unix.EAGAIN {
		return
	}
	if n <= 0 {
		unix.Close(r.pipes[i])
		r.pipes[i] = -1
		return
	}
	r.heard = time.Now()
	r.c.Log.Append(output.Stream(i), r.heard.UnixMilli(), r.w.buffer[:n])
}
