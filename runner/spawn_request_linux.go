package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/sockpath"
	"github.com/queuectl/queuectl/runner/process"
)

// requestPrefix begins the line with which a service requests a runner of root.
const requestPrefix = "queuectl wants a runner"

// requestRunner sends a request to Socket and returns the name in the reply. The process that listens
// on the socket is the launcher or systemd. It starts a process with the connection as its standard
// input, and that process replies.
func (h Home) requestRunner(args ...string) (name string, err error) {
	if err := h.CheckLauncher(); err != nil {
		return "", err
	}
	c, err := sockpath.DialWithin(h.Socket, startTimeout)
	if err != nil {
		return "", h.unreachableError(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(startTimeout))
	if _, err := fmt.Fprintln(c, strings.Join(append([]string{requestPrefix}, args...), " ")); err != nil {
		return "", err
	}
	name, err = readReady(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = h.noReplyError(int(peerPID(c)), err)
	}
	return name, err
}

// unreachableError returns the error of a failed connection to Socket. If no process listens, the error
// contains the next step.
func (h Home) unreachableError(err error) error {
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return &LauncherError{
		Problem: fmt.Sprintf("no process listens on the socket %s (%v)", h.Socket, err),
		Next:    "start the launcher: systemctl start queuectl-runner.socket (without systemd: restart the service)",
	}
}

// noReplyError returns the error of a request that got no answer within startTimeout. pid is the
// process that listens on Socket: the launcher, or systemd.
func (h Home) noReplyError(pid int, err error) error {
	if stopped := stoppedLauncher(pid); stopped != nil {
		return stopped
	}
	if pid == 0 || h.Own {
		return err
	}
	next := fmt.Sprintf("as root, find out what process %d is waiting for: cat /proc/%[1]d/stack; "+
		"if the process hangs, run kill -KILL %[1]d and restart the service", pid)
	if pid == 1 {
		next = "see the runner's log: journalctl -u 'queuectl-runner@*'"
	}
	return &LauncherError{PID: pid, Problem: fmt.Sprintf("started no runner within %v", startTimeout), Next: next}
}

// peerClosed reports whether the other end of a connection was closed.
func peerClosed(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, failed := unix.Poll(ends, 0)
		closed = failed == nil && n == 1
	})
	return err == nil && closed
}

// maxRequest bounds a request for a runner, in bytes. A request may contain a path.
const maxRequest = 16 << 10

// SpawnRequest is a runner of root, or of a user's systemd, that a service requested through a
// connection.
type SpawnRequest struct {
	Options
	// Undivided is the reason why jobs get no control groups although the system delegated one; nil if
	// they get control groups, or none was delegated.
	Undivided error
	// Ended reports that the request was to kill another runner. That has been done, and Serve must not
	// be called.
	Ended bool
	conn  net.Conn
}

// Accept reads a service's request from the connection on standard input, and returns the options for
// Serve. It replaces standard input by /dev/null. base is the directory of the runners, and policy the
// path of the policy file. delegated says that the control group of this process was delegated to it.
// If the request is for a runner of an account, Accept switches this process to that account for good.
func Accept(base, policy string, delegated bool) (*SpawnRequest, error) {
	c, err := net.FileConn(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("cannot accept the service's connection on standard input: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return nil, err
	}
	a := &SpawnRequest{conn: c}
	c.SetDeadline(time.Now().Add(startTimeout))
	if err := a.parse(base, policy, delegated); err != nil {
		a.Refuse(err)
		return nil, err
	}
	return a, nil
}

// parse parses the request and does everything that needs root privileges.
func (a *SpawnRequest) parse(base, policy string, delegated bool) error {
	peer, err := peerOf(a.conn)
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(a.conn, maxRequest)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("cannot read the service's request: %w", err)
	}
	words, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), requestPrefix)
	if !ok {
		return fmt.Errorf("%q is not a request for a runner", line)
	}
	// The policy's job_tmpdir replaces this value below if the runner runs as root.
	words, a.Tmpdir, _ = strings.Cut(words, " "+tmpdirArg)
	a.Root, a.Policy, a.Service = base, policy, int(peer.Uid)
	account := ""
	for _, word := range strings.Fields(words) {
		name, isAs := strings.CutPrefix(word, accountArg)
		end, isEnd := strings.CutPrefix(word, endArg)
		switch {
		case isEnd && policy != "":
			a.Ended = true
			if err := killNamedRunner(base, end); err != nil {
				return err
			}
			a.Tell(end)
			return nil
		case word == aloneArg:
			a.Alone = true
		case isAs:
			account = name
		default:
			return fmt.Errorf("unknown word %q in the service's request: the service is newer than this runner; install the same version of both", word)
		}
	}
	ownAccount := policy == ""
	switch {
	case ownAccount && (account != "" || int(peer.Uid) != os.Geteuid()):
		return errors.New("this runner can run only jobs of its own account")
	case ownAccount:
		err = os.MkdirAll(base, 0o700)
	default:
		err = shareDir(base, 0, int(peer.Gid), rootDirMode)
	}
	if err != nil {
		return err
	}
	if delegated {
		a.Cgroups, a.Undivided = process.Divide()
	}
	if ownAccount {
		return nil
	}
	rules, err := readPolicy(policy)
	if err != nil {
		return err
	}
	if a.Tmpdir = rules.tmpdir; a.Tmpdir != "" {
		if err := checkTmpdir(a.Tmpdir, base, true); err != nil {
			return err
		}
	}
	if err := process.PreferOOMKillOfCommands(); err != nil || account == "" {
		return err
	}
	return a.switchAccount(account, policy, int(peer.Gid))
}

// killNamedRunner kills the runner whose directory has the given name below base.
func killNamedRunner(base, name string) error {
	account, runner := filepath.Split(filepath.Clean(name))
	account = strings.TrimSuffix(account, "/")
	if !filepath.IsLocal(name) || !isRunner(runner) || runner[0] == '.' || account != "" && (!strings.HasPrefix(account, accountPrefix) || strings.Contains(account, "/")) {
		return fmt.Errorf("%q is not a runner name", name)
	}
	return killRunner(filepath.Join(base, account, runner))
}

// switchAccount switches this process to an account and makes sure that it cannot switch back.
func (a *SpawnRequest) switchAccount(name, policy string, gid int) error {
	account, err := (&Accounts{Policy: policy, Service: a.Service, Directory: &accounts.Directory{Patient: true}}).byName(name)
	if err != nil {
		return err
	}
	if account.UID == 0 {
		return errors.New("the setting run_as = fixed:root would run all users' jobs as root; use another account")
	}
	if a.Credentials, err = credentialsOf(policy, account, a.Service); err != nil {
		return err
	}
	a.Root, a.Policy = filepath.Join(a.Root, accountPrefix+account.Name), ""
	if err := shareDir(a.Root, int(account.UID), gid, accountDirMode); err != nil {
		return err
	}
	if a.Tmpdir != "" {
		a.Tmpdir = filepath.Join(a.Tmpdir, accountPrefix+account.Name)
		os.Mkdir(a.Tmpdir, 0o700) // if this fails, Lchown fails too, unless the directory exists
		if err := os.Lchown(a.Tmpdir, int(account.UID), int(account.GID)); err != nil {
			return err
		}
	}
	if a.Cgroups != nil {
		if err := a.Cgroups.Chown(int(account.UID), int(account.GID)); err != nil {
			return fmt.Errorf("cannot give account %s the runner's control group: %w", account.Name, err)
		}
	}
	groups := make([]int, len(account.Groups))
	for i, g := range account.Groups {
		groups[i] = int(g)
	}
	uid, accountGID := int(account.UID), int(account.GID)
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(accountGID, accountGID, accountGID), syscall.Setresuid(uid, uid, uid)); err != nil {
		return fmt.Errorf("cannot switch to account %s: %w", account.Name, err)
	}
	if syscall.Setresuid(0, 0, 0) == nil {
		return fmt.Errorf("a runner for account %s was not started, because it could switch back to root", account.Name)
	}
	return nil
}

// Tell replies to the service with the name of the runner's directory, once the runner listens.
func (a *SpawnRequest) Tell(dir string) {
	// The only possible error is that the service has gone.
	fmt.Fprintln(a.conn, readyPrefix+filepath.Base(dir))
	a.conn.Close()
}

// Refuse replies to the service with the reason why no runner was started. After Tell it does nothing.
func (a *SpawnRequest) Refuse(reason error) {
	fmt.Fprintln(a.conn, refusedPrefix+strings.ReplaceAll(reason.Error(), "\n", "; "))
	a.conn.Close()
}

// peerOf returns the credentials of the process at the other end of a Unix socket, from the kernel.
func peerOf(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("the connection is not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, inner)
}

// peerPID returns the pid of the process at the other end of a socket, or 0 if it is unknown.
func peerPID(c net.Conn) int64 {
	cred, err := peerOf(c)
	if err != nil {
		return 0
	}
	return int64(cred.Pid)
}

func peerUID(c net.Conn) (int, error) {
	cred, err := peerOf(c)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}
