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

// binaries contains the paths of the built programs, by build tag. The tag "" means the program as shipped. The
// tag "failpoint" means a program with failpoints: named places at which a test can make it wait or fail.
var binaries struct {
	sync.Mutex
	dir  string
	path map[string]string
}

// lockedVariable is an environment variable that Main sets after it has taken its lock. A test may start its
// own test binary again; the child process sees the variable and does not wait for the lock.
const lockedVariable = "QUEUECTL_TEST_LOCKED"

// Main is the TestMain of a package. It runs the tests. Only two packages whose tests call Main run at a
// time, because their services, clients and jobs together use the whole machine.
//
// A test may start its own test binary as a helper process. It then sets one of the environment variables in
// roles. In that process, Main runs the function for the variable instead of the tests, and exits with its
// result.
func Main(m *testing.M, roles map[string]func() int) {
	for variable, run := range roles {
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
	if os.Getenv(lockedVariable) == "" {
		unlock, err := lockOneOf([2]string{"package1", "package2"})
		if err != nil {
			panic(err)
		}
		defer unlock() // needed only after a panic, because the lock ends with the process
		os.Setenv(lockedVariable, "1")
	}
	code := m.Run()
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// Root returns the path of the repository, or "" if the machine does not have the sources.
func Root() string {
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

// lock waits until no other process holds the lock with this name, and takes it.
func lock(name string) (unlock func(), err error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, awaitLock(f)
}

// lockOneOf waits until one of the two locks is free, and takes it. A goroutine keeps waiting for the other
// lock, takes that lock when it is free, and releases it immediately.
func lockOneOf(names [2]string) (unlock func(), err error) {
	type result struct {
		unlock func()
		err    error
	}
	first := make(chan result, 1)
	var isTaken atomic.Bool
	for _, name := range names {
		go func() {
			unlock, err := lock(name)
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

// cacheDir returns the directory that all test packages of this checkout share.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	sum := sha256.Sum256([]byte(Root()))
	dir := filepath.Join(base, "queuectl-test", hex.EncodeToString(sum[:6]))
	return dir, os.MkdirAll(dir, 0o700)
}

// BuiltProgram returns the path of the program built with the given build tag. The tag "" means the program as
// shipped.
//
// All packages build into one directory, where the go command links a program again only if its code has
// changed. Each package uses a copy, because a later run may replace the program in that directory.
func BuiltProgram(t testing.TB, tag string) string {
	t.Helper()
	binaries.Lock()
	defer binaries.Unlock()
	if p := binaries.path[tag]; p != "" {
		return p
	}
	// If QUEUECTL_TEST_BIN names a directory with built programs, use these, because this machine may lack Go.
	if dir := os.Getenv("QUEUECTL_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "plain"+tag, Programs[0])
	}
	if binaries.path == nil {
		dir, err := os.MkdirTemp("", "queuectl-test")
		if err != nil {
			t.Fatal(err)
		}
		binaries.dir, binaries.path = dir, map[string]string{}
	}
	unlock, err := lock("build")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(cache, "plain"+tag)
	build := exec.Command("go", "build", "-tags", tag, "-o", built+string(filepath.Separator), "./cmd/...")
	build.Dir, build.Env = Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	dir := filepath.Join(binaries.dir, "plain"+tag)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	binaries.path[tag] = Install(t, filepath.Join(built, Programs[0]), dir)
	return binaries.path[tag]
}
