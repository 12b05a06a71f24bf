//go:build linux || windows

package testrig

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// builtPrograms contains the paths of the built programs, by build tag. The tag "" means the program as shipped. The
// tag "failpoint" means a program with failpoints: named places at which a test can make it wait or fail.
var builtPrograms struct {
	sync.Mutex
	dir  string
	path map[string]string
}

// lockHeldVariable is an environment variable that RunPackageTests sets after it has taken its lock. A test may start
// its own test binary as a child process. Because of this variable, the child process does not wait for the lock.
const lockHeldVariable = "QUEUECTL_TEST_LOCKED"

// RunPackageTests implements TestMain for a package: it runs the tests of the package. The tests of only one package
// that uses RunPackageTests run at a time, or of two with the flag -short, because their services, clients and jobs
// together use the whole machine. On a busy machine, long tests miss the times that they check.
//
// A test may start its own test binary as a helper process. To do so, it sets one of the environment variables in
// helpersByEnvVariable. In the helper process, RunPackageTests calls the function for the variable instead of running
// the tests. The result of the function is the exit code of the process.
func RunPackageTests(m *testing.M, helpersByEnvVariable map[string]func() int) {
	for variable, run := range helpersByEnvVariable {
		if os.Getenv(variable) != "" {
			os.Exit(run())
		}
	}
	flag.Parse()
	// Run more tests in parallel than the machine has processors, because tests mostly wait for other
	// processes.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))
	}
	if os.Getenv(lockHeldVariable) == "" {
		lockNames := []string{"package1", "package2"}
		if !testing.Short() {
			lockNames = lockNames[:1]
		}
		unlock, err := acquireOneOfLocks(lockNames)
		if err != nil {
			panic(err)
		}
		defer unlock() // unlocks after a panic; otherwise the lock ends with the process
		os.Setenv(lockHeldVariable, "1")
	}
	code := m.Run()
	if builtPrograms.dir != "" {
		os.RemoveAll(builtPrograms.dir)
	}
	os.Exit(code)
}

// RepositoryRoot returns the path of the repository, or "" if the machine does not have the sources.
func RepositoryRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// acquireProcessLock waits until no other process holds the lock with the given name, and takes the lock.
func acquireProcessLock(lockName string) (unlock func(), err error) {
	dir, err := checkoutCacheDir()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, waitForFileLock(f)
}

// acquireOneOfLocks waits until one of the locks is free, and takes it. One goroutine waits for each lock. A goroutine
// that gets its lock after another one releases that lock immediately.
func acquireOneOfLocks(lockNames []string) (unlock func(), err error) {
	type result struct {
		unlock func()
		err    error
	}
	first := make(chan result, 1)
	var isTaken atomic.Bool
	for _, name := range lockNames {
		go func() {
			unlock, err := acquireProcessLock(name)
			if !isTaken.Swap(true) {
				first <- result{unlock, err}
			} else if err == nil {
				unlock()
			}
		}()
	}
	r := <-first
	return r.unlock, r.err
}

// checkoutCacheDir returns the directory that all test packages of this checkout share.
func checkoutCacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	sum := sha256.Sum256([]byte(RepositoryRoot()))
	dir := filepath.Join(base, "queuectl-test", hex.EncodeToString(sum[:6]))
	return dir, os.MkdirAll(dir, 0o700)
}

// BuiltProgram returns the path of the program built with the given build tag. The tag "" means the program as
// shipped.
//
// All packages build into one directory, where the go command links a program again only if its code has changed. Each
// package uses a copy of the program, because a later run may replace the program in the common directory.
func BuiltProgram(t testing.TB, buildTag string) string {
	t.Helper()
	builtPrograms.Lock()
	defer builtPrograms.Unlock()
	if p := builtPrograms.path[buildTag]; p != "" {
		return p
	}
	// If QUEUECTL_TEST_BIN names a directory with built programs, use these programs, because this machine may lack Go.
	if dir := os.Getenv("QUEUECTL_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "plain"+buildTag, ProgramFileNames[0])
	}
	if builtPrograms.path == nil {
		dir, err := os.MkdirTemp("", "queuectl-test")
		if err != nil {
			t.Fatal(err)
		}
		builtPrograms.dir, builtPrograms.path = dir, map[string]string{}
	}
	unlock, err := acquireProcessLock("build")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	cache, err := checkoutCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(cache, "plain"+buildTag)
	build := exec.Command("go", "build", "-tags", buildTag, "-o", built+string(filepath.Separator), "./cmd/...")
	build.Dir, build.Env = RepositoryRoot(), append(os.Environ(), "CGO_ENABLED=0", "GOGC=400") // see the Makefile
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	dir := filepath.Join(builtPrograms.dir, "plain"+buildTag)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	builtPrograms.path[buildTag] = InstallPrograms(t, filepath.Join(built, ProgramFileNames[0]), dir)
	return builtPrograms.path[buildTag]
}
