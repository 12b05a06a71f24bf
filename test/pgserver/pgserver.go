// Package pgserver starts PostgreSQL servers for tests.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// Server is a PostgreSQL server in its own directory, which also contains its socket. It is not
// safe for concurrent use.
type Server struct {
	Dir                  string
	Port                 int    // port in the name of the socket, and the TCP port if the server listens on an address
	programDir           string // directory of PostgreSQL's programs
	cmd                  *exec.Cmd
	createdDatabaseCount int // number of databases that CreateDatabase has created
}

// sharedServer contains the server that SharedServer returns, and the mutex that guards it.
var sharedServer struct {
	sync.Mutex
	server *Server
}

// SharedServer returns a server for all tests of a package. Tests must not stop it. It does not flush its data to
// the disk. A package that calls SharedServer must call StopSharedServer at its end.
func SharedServer(t testing.TB) *Server {
	t.Helper()
	sharedServer.Lock()
	defer sharedServer.Unlock()
	if sharedServer.server == nil {
		sharedServer.server = New(t, "fsync=off", "autovacuum=off")
	}
	return sharedServer.server
}

// StopSharedServer ends the shared server, if it was started.
func StopSharedServer() {
	sharedServer.Lock()
	defer sharedServer.Unlock()
	if sharedServer.server != nil {
		sharedServer.server.StopAndRemove()
		sharedServer.server = nil
	}
}

// New starts a server with the given settings, each NAME=VALUE. It skips the test in short mode and if
// PostgreSQL is not installed.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	skip.IfShort(t, "starts a PostgreSQL server; make test-long runs it")
	bin := ""
	// Under Wine, PATH lookups find the programs of the host, which Wine cannot run.
	if runtime.GOOS == "windows" {
		skip.MissingRequirement(t, "postgres",
			"needs a PostgreSQL server, which Wine cannot run; .ci/run installs one on Linux")
	}
	// Debian installs the programs in a directory that is not in PATH.
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		bin = filepath.Dir(found[len(found)-1])
	} else if path, err := exec.LookPath("initdb"); err == nil {
		bin = filepath.Dir(path)
	} else {
		skip.MissingRequirement(t, "postgres", "needs a PostgreSQL server; .ci/run installs one")
	}
	dir, err := os.MkdirTemp("", "queuectl-pg")
	if err == nil {
		err = chownToServerAccount(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &Server{Dir: dir, Port: 5432, programDir: bin}
	p.runProgram(t, "initdb", "-D", p.dataDir(), "-U", "queuectl", "-A", "trust", "--no-sync", "--no-instructions")
	p.Start(t, settings...)
	return p
}

func (s *Server) dataDir() string { return filepath.Join(s.Dir, "data") }

// runProgram runs a program of PostgreSQL and returns its output.
func (s *Server) runProgram(t testing.TB, programName string, args ...string) (output string) {
	t.Helper()
	raw, err := s.programCommand(programName, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", programName, strings.Join(args, " "), err, raw)
	}
	return strings.TrimSpace(string(raw))
}

// programCommand returns a command that runs a program of PostgreSQL under the server's account.
func (s *Server) programCommand(programName string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programDir, programName), args...)
	cmd.Dir = s.Dir
	runAsServerAccount(cmd)
	return cmd
}

// Start starts the server and waits until it accepts connections.
func (s *Server) Start(t testing.TB, settings ...string) {
	t.Helper()
	args := []string{"-D", s.dataDir(), "-k", s.Dir, "-p", fmt.Sprint(s.Port), "-c", "listen_addresses=", "-c",
		"max_connections=60"}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd = s.programCommand("postgres", args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s.programCommand("pg_isready", "-q", "-h", s.Dir, "-p", fmt.Sprint(s.Port)).Run() != nil {
		select {
		case <-ctx.Done():
			raw, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
			t.Fatalf("the server does not start:\n%s", raw)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the server immediately, as a crash does. The server recovers its data when it starts again.
func (s *Server) Kill() {
	quitServerImmediately(s.cmd)
	// A frozen server (see SetFrozen) does not react to the signal, so kill it after ten seconds.
	timer := time.AfterFunc(10*time.Second, func() { s.cmd.Process.Kill() })
	defer timer.Stop()
	s.cmd.Wait()
}

// SetFrozen stops all processes of the server, or lets them continue if frozen is false. A frozen server neither
// answers its connections nor closes them.
func (s *Server) SetFrozen(frozen bool) { setServerFrozen(s.cmd, frozen) }

// DatabaseURL returns the URL of a database of the server.
func (s *Server) DatabaseURL(databaseName string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=queuectl", databaseName, s.Dir, s.Port)
}

// SocketPath returns the path of the server's socket.
func (s *Server) SocketPath() string { return filepath.Join(s.Dir, fmt.Sprint(".s.PGSQL.", s.Port)) }

// CreateDatabase creates a database for a test and returns its URL.
func (s *Server) CreateDatabase(t testing.TB) (url string) {
	t.Helper()
	sharedServer.Lock()
	s.createdDatabaseCount++
	name := fmt.Sprint("t", s.createdDatabaseCount)
	sharedServer.Unlock()
	s.runProgram(t, "createdb", "-S", "file_copy", "-h", s.Dir, "-p", fmt.Sprint(s.Port), "-U", "queuectl", name)
	return s.DatabaseURL(name)
}

// StartStandby starts a synchronous standby: a second server with a copy of the data. Each commit waits until the
// standby has stored the transaction.
func (s *Server) StartStandby(t testing.TB, port int, settings ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "queuectl-pg")
	if err == nil {
		err = chownToServerAccount(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	standby := &Server{Dir: dir, Port: port, programDir: s.programDir}
	standby.runProgram(t, "pg_basebackup", "-D", standby.dataDir(), "-R", "-X", "stream", "-c", "fast", "-h", s.Dir,
		"-p", fmt.Sprint(s.Port), "-U", "queuectl")
	standby.Start(t, settings...)
	s.setSynchronousStandbys(t, "*")
	return standby
}

// setSynchronousStandbys makes the server wait at each commit until the named standbys have stored the
// transaction.
func (s *Server) setSynchronousStandbys(t testing.TB, standbyNames string) {
	t.Helper()
	for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + standbyNames + "'",
		"SELECT pg_reload_conf()"} {
		Query(t, s.DatabaseURL("postgres"), statement)
	}
}

// Promote turns a standby into a primary that waits for no standby.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.runProgram(t, "pg_ctl", "promote", "-w", "-D", s.dataDir())
	s.setSynchronousStandbys(t, "")
}

// AllowNetwork permits connections from a network.
func (s *Server) AllowNetwork(t testing.TB, networkCIDR string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dataDir(), "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(f, "host all all %s trust\n", networkCIDR)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	Query(t, s.DatabaseURL("postgres"), "SELECT pg_reload_conf()")
}

// BackendPIDs returns the pids of the server processes for the connections of queuectl.
func (s *Server) BackendPIDs(t testing.TB) (pids []int) {
	out, err := TryQuery(s.DatabaseURL("postgres"), "SELECT pid FROM pg_stat_activity WHERE application_name = 'queuectl'")
	for field := range strings.FieldsSeq(out) {
		if pid, bad := strconv.Atoi(field); err == nil && bad == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// StartPooler starts the connection pooler PgBouncer, which may choose another connection for each transaction.
// It returns the URL of a database behind the pooler. It skips the test if PgBouncer is not installed.
func (s *Server) StartPooler(t testing.TB, databaseName string) (url string) {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/pgbouncer") // Debian installs it here, which is not in a user's PATH
	}
	if err != nil {
		skip.MissingRequirement(t, "pgbouncer", "needs PgBouncer; .ci/run installs it")
	}
	dir, err := os.MkdirTemp("", "queuectl-pg")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, `[databases]
* = host=%s port=%d user=queuectl
[pgbouncer]
unix_socket_dir = %s
listen_port = 6432
listen_addr =
auth_type = any
pool_mode = transaction
default_pool_size = 5
logfile = %s/log
`, s.Dir, s.Port, dir, dir), 0o644)
	}
	if err == nil {
		err = chownToServerAccount(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.programCommand("pgbouncer", filepath.Join(dir, "conf"))
	cmd.Path = bin
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	url = fmt.Sprintf("postgres:///%s?host=%s&port=6432&user=queuectl&pool_mode=transaction", databaseName, dir)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := TryQuery(strings.TrimSuffix(url, "&pool_mode=transaction"), "SELECT 1")
		if err == nil {
			return url
		}
		if time.Now().After(deadline) {
			raw, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("the pooler does not start: %s\n%s", out, raw)
		}
	}
}

// StopAndRemove ends the server and removes its directory.
func (s *Server) StopAndRemove() {
	s.Kill()
	os.RemoveAll(s.Dir)
}

// Query runs a statement and returns one row per line. It fails the test if the statement fails.
func Query(t testing.TB, databaseURL, statement string) string {
	t.Helper()
	out, err := TryQuery(databaseURL, statement)
	if err != nil {
		t.Errorf("%s: %v\n%s", statement, err, out)
	}
	return out
}

// TryQuery is like Query, but returns the error of a statement that may fail.
func TryQuery(databaseURL, statement string) (rows string, err error) {
	raw, err := exec.Command("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", databaseURL, "-c",
		statement).CombinedOutput()
	return strings.TrimSpace(string(raw)), err
}

// URLWithRole returns the URL with another database role instead of queuectl.
func URLWithRole(databaseURL, role string) string {
	return strings.Replace(databaseURL, "user=queuectl", "user="+role, 1)
}
