package queuectl

import (
	"errors"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePathPrefix = "github.com/queuectl/queuectl/"

// allowedImportsByPackage lists the packages of this module that each package may import. All tests may also import
// store/storetest and packages below it, store/memstore, internal/skip, and the packages in allowedTestImports. The
// tests in the directory test/ may also import internal/testrig.
var allowedImportsByPackage = map[string][]string{
	"internal/accounts":   {},
	"internal/atomicfile": {},
	"internal/cleanstart": {},
	"internal/copies":     {},
	"internal/failpoint":  {},
	"internal/dir":        {},
	"internal/lockfile":   {},
	"internal/pipe":       {"internal/accounts"},
	"internal/session":    {},
	"internal/skip":       {},
	"internal/testrig":    {"internal/skip", "test/pgserver"},
	"internal/sockpath":   {},
	"internal/osservice":  {"config", "internal/accounts"},
	"internal/systemd":    {},
	"internal/termtext":   {},
	"internal/tune":       {},
	"internal/tune/stack": {},
	"internal/zone":       {"queue"},
	"packaging":           {},
	"queue":               {},
	"schedule":            {"queue", "internal/zone"},
	"output":              {},
	"runner/wire":         {},
	"runner/cmdline":      {},
	"runner/procfs":       {},
	"runner/runas":        {},
	"runner/privdir":      {"runner/runas"},
	"runner/process": {"queue", "output", "internal/cleanstart", "internal/termtext", "runner/cmdline",
		"runner/privdir", "runner/procfs", "runner/runas", "internal/tune"},
	"config":             {"queue"},
	"config/tomlfile":    {"queue", "config"},
	"store":              {"queue"},
	"control":            {"queue", "control/fair", "control/socket", "internal/failpoint"},
	"control/fair":       {"queue"},
	"control/socket":     {"queue", "internal/accounts", "internal/dir", "internal/pipe", "internal/sockpath"},
	"store/rules":        {"store", "queue"},
	"store/database":     {"store", "queue"},
	"store/sqlitedb":     {"store", "store/database", "queue", "internal/failpoint"},
	"store/pgdb":         {"store", "store/database", "queue"},
	"store/estimates":    {"store", "store/database", "store/rules", "queue"},
	"store/noderequests": {"store", "store/database", "store/pgdb", "store/records", "queue"},
	"store/move":         {"store/database", "store/sqlitedb", "store/pgdb", "queue", "internal/atomicfile"},
	"store/records":      {"store", "store/database", "store/rules", "queue"},
	"store/integrity": {"store", "store/database", "store/records", "store/sqlitedb", "queue", "output",
		"internal/atomicfile"},
	"store/reads":        {"store", "store/database", "store/records", "store/rules", "queue"},
	"store/statistics":   {"store", "store/database", "store/records", "store/rules", "queue"},
	"store/dependencies": {"store", "store/database", "store/rules", "queue"},
	"store/gates":        {"store", "store/database", "store/rules", "queue"},
	"store/lanes":        {"store", "store/database", "store/records", "store/rules"},
	"store/readahead":    {"store/database", "store/records", "store/rules", "queue"},
	"store/writequeue":   {"queue"},
	"store/ids":          {"queue"},
	"store/engine": {"store", "store/database", "store/dependencies", "store/estimates", "store/gates", "store/ids",
		"store/lanes", "store/readahead", "store/reads", "store/records", "store/rules", "store/sqlitedb",
		"store/statistics", "store/writequeue", "queue", "internal/failpoint"},
	"store/sqlite": {"store", "store/database", "store/engine", "store/integrity", "store/sqlitedb", "queue",
		"internal/dir", "internal/failpoint"},
	"store/postgres": {"store", "store/database", "store/engine", "store/noderequests", "store/pgdb",
		"store/readahead", "store/reads", "store/records", "store/rules", "queue"},
	"store/memstore":             {"store", "queue"},
	"store/storetest/faultstore": {"store", "queue"},
	"store/storetest":            {"store", "queue"},
	"mcp":                        {"queue", "control", "output", "internal/termtext"},
	"dashboard": {"queue", "control", "control/fair", "control/socket", "metrics", "output", "internal/present",
		"internal/termtext"},
	"metrics": {"control"},
	"traces":  {"queue"},
	"runner/rundir": {"runner/wire", "internal/accounts", "internal/atomicfile",
		"internal/failpoint", "internal/lockfile", "internal/pipe", "internal/sockpath", "runner/privdir"},
	"runner": {"runner/process", "runner/rundir", "runner/wire", "internal/cleanstart", "internal/copies",
		"internal/failpoint", "internal/session", "internal/sockpath", "internal/accounts"},
	"runner/launcher": {"runner", "runner/process", "runner/rundir", "runner/wire", "internal/accounts"},
	"runner/daemon": {"queue", "output", "runner", "runner/launcher", "runner/process", "runner/rundir", "runner/wire",
		"internal/accounts", "internal/atomicfile", "internal/failpoint", "runner/privdir", "runner/runas",
		"internal/dir"},
	"upkeep":           {"queue", "store", "schedule", "internal/zone"},
	"worker":           {"queue", "store", "runner", "runner/wire", "internal/failpoint"},
	"service/settings": {"queue", "config", "config/tomlfile", "store", "control"},
	"service/access": {"queue", "config", "store", "control", "runner", "runner/launcher", "worker",
		"service/settings", "internal/accounts"},
	"service/cluster": {"queue", "output", "config", "store", "control", "control/fair", "runner", "worker",
		"service/settings", "service/access"},
	"service/hooks": {"queue", "config", "store", "control", "worker", "service/settings", "service/access",
		"internal/accounts"},
	// service/parts lists the parts of a service, such as the store and the worker pool.
	"service/parts": {"queue", "config", "store", "control", "runner", "worker", "service/settings",
		"service/access", "service/cluster", "service/hooks", "internal/systemd"},
	"service/doctor": {"queue", "config", "store", "control", "runner", "runner/process", "worker",
		"service/settings", "service/access", "service/cluster", "service/parts", "internal/accounts", "internal/systemd"},
	// service/reasons finds out why jobs wait. Several parts of service/handlers use it.
	"service/reasons": {"queue", "store", "control", "worker", "service/settings", "service/access",
		"service/cluster", "service/doctor", "service/parts"},
	// service/submissions connects to the control server as a client, so it is separate from the handlers.
	"service/submissions": {"queue", "store", "control", "service/parts", "internal/accounts"},
	"service/handlers": {"queue", "output", "config", "store", "control", "control/fair", "schedule", "dashboard",
		"runner", "runner/process", "upkeep", "worker", "service/settings", "service/access", "service/cluster",
		"service/hooks", "service/doctor", "internal/logs", "internal/systemd", "internal/termtext",
		"internal/zone", "service/reasons", "service/parts"},
	"service": {"queue", "config", "store", "control", "control/socket", "traces", "runner",
		"runner/launcher", "runner/process", "upkeep", "worker", "service/settings", "service/access",
		"service/cluster", "service/hooks", "service/doctor", "service/handlers", "service/parts", "internal/accounts",
		"internal/atomicfile", "internal/lockfile", "internal/logs", "internal/pipe", "internal/session",
		"internal/statedir", "internal/systemd", "service/submissions", "store/integrity", "store/move",
		"store/pgdb", "store/postgres", "store/sqlite", "store/sqlitedb"},
	"internal/osservice/install": {"config", "queue", "packaging", "internal/accounts", "internal/atomicfile",
		"internal/copies", "internal/osservice"},
	"internal/statedir": {"queue", "internal/accounts"},
	"internal/logs":     {"internal/statedir", "internal/systemd"},
	"top":               {"control", "queue", "internal/cli/fault", "internal/present", "internal/termtext"},
	"internal/cli": {"config", "control", "queue", "internal/cli/connect", "internal/cli/enqueue",
		"internal/cli/fault", "internal/cli/files", "internal/cli/hints", "internal/cli/input",
		"internal/cli/term", "internal/cli/when", "internal/present", "internal/termtext", "internal/zone"},
	"internal/present": {"control", "queue", "internal/termtext"},
	"cmd/queuectl": {"config", "runner", "runner/daemon", "runner/launcher", "runner/process", "internal/cli",
		"internal/cli/fault", "internal/logs", "internal/session", "internal/systemd", "internal/tune/stack"},
	"cmd/queuectld": {"config", "config/tomlfile", "control", "mcp", "metrics", "queue", "service",
		"service/hooks", "top", "internal/atomicfile", "internal/cleanstart", "internal/cli",
		"internal/cli/admin", "internal/cli/connect", "internal/cli/fault", "internal/cli/files",
		"internal/cli/help", "internal/cli/input", "internal/cli/private", "internal/cli/term", "internal/logs",
		"internal/present", "internal/session", "internal/systemd", "internal/zone", "internal/osservice",
		"internal/osservice/install", "internal/tune"},
	"bench":            {"control", "queue"},
	"test/access":      {},
	"test/api":         {},
	"test/cli":         {},
	"test/cluster":     {},
	"test/durability":  {},
	"test/jobs":        {},
	"test/page":        {},
	"test/runner":      {},
	"test/windows":     {},
	"bench/postgres":   {"queue"},
	"test/demo":        {},
	"test/pgserver":    {"internal/skip"},
	"test/posix":       {},
	"internal/pages":   {"config", "control", "queue"},
	"internal/release": {},
	"internal/cli/admin": {"config", "config/tomlfile", "control", "queue", "internal/atomicfile", "internal/cli",
		"internal/cli/enqueue", "internal/cli/fault", "internal/cli/files", "internal/cli/hints",
		"internal/cli/input", "internal/cli/term", "internal/cli/when", "internal/present", "internal/termtext",
		"internal/zone", "schedule"},
	"internal/cli/connect": {"config", "control", "control/socket", "queue", "internal/cleanstart",
		"internal/cli/fault", "internal/cli/files", "internal/cli/term", "internal/logs", "internal/osservice"},
	"internal/cli/enqueue": {"control", "queue", "internal/cli/connect", "internal/cli/fault",
		"internal/cli/input", "internal/cli/term", "internal/present", "internal/termtext"},
	"internal/cli/fault": {"control", "queue"},
	"internal/cli/files": {"queue", "internal/cli/fault"},
	"internal/cli/help":  {"internal/cli/input", "internal/termtext"},
	"internal/cli/hints": {"queue"},
	"internal/cli/input": {"control", "queue", "internal/cli/fault", "internal/cli/files", "internal/cli/term",
		"internal/cli/when", "internal/present", "internal/termtext"},
	"internal/cli/private": {"config", "control", "queue", "internal/atomicfile", "internal/cli",
		"internal/cli/connect", "internal/cli/enqueue", "internal/cli/fault", "internal/cli/files",
		"internal/cli/input", "internal/cli/term", "internal/present", "internal/termtext", "internal/tune"},
	"internal/cli/term":       {"queue", "internal/present", "internal/termtext"},
	"internal/cli/when":       {"queue", "internal/cli/fault", "internal/zone"},
	"packaging/test/wineshim": {},
}

// allowedTestImports lists the packages that the tests of a package may import in addition to the packages in
// allowedImportsByPackage.
var allowedTestImports = map[string][]string{
	// the tests implement a fake runner
	"worker": {"runner/process", "runner/rundir", "internal/lockfile", "internal/pipe"},
	// the tests start runners
	"service": {"runner/daemon"},
	// the tests serve a queue in SQLite
	"service/handlers": {"store/sqlite", "runner/launcher", "control/socket", "internal/accounts"},
	// the tests fill the tables directly
	"bench": {"store", "store/sqlite"},
	// the benchmark measures these packages
	"bench/postgres": {"store", "store/postgres"},
	// the tests check the client's identity
	"control": {"internal/accounts", "internal/pipe"},
	// the tests check the help of every command
	"internal/cli/admin": {"internal/cli/help"},
	// The tests of the engine use both databases, and move queues between them.
	"store/engine": {"store/integrity", "store/move", "store/pgdb", "store/postgres", "store/sqlite"},
	"store/reads":  {"store/sqlite", "store/sqlitedb"}, // the tests look up jobs in damaged files
	"store/sqlite": {"store/reads"},                    // the tests run slow readers
}

// On Windows, the kernel writes into a windows.Overlapped until the operation that uses it has ended. Go may move a
// goroutine's stack, and with it an Overlapped on the stack, before that. So each Overlapped must be a field of an
// object on the heap: a variable or a literal could be on the stack.
func TestWindowsOverlappedIsOnlyAField(t *testing.T) {
	local := regexp.MustCompile(`&windows\.Overlapped\{|:= *windows\.Overlapped\{|var \w+ windows\.Overlapped`)
	for file := range importsByGoFile(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := local.Find(raw); found != nil && !strings.HasSuffix(file, "_test.go") &&
			!strings.HasPrefix(file, "test/") {
			t.Errorf("%s contains %q; make the Overlapped a field of an object on the heap", file, found)
		}
	}
}

// Each package imports only the packages of this module that the table allowedImportsByPackage lists for it.
func TestPackagesImportOnlyAllowedPackages(t *testing.T) {
	for file, imports := range importsByGoFile(t) {
		pkg := filepath.ToSlash(filepath.Dir(file))
		allowed, known := allowedImportsByPackage[pkg]
		if !known && pkg != "." {
			t.Errorf("%s: the table law lacks the package %s", file, pkg)
		}
		for _, imported := range imports {
			ours, found := strings.CutPrefix(imported, modulePathPrefix)
			if !found || slices.Contains(allowed, ours) {
				continue
			}
			test := strings.HasSuffix(file, "_test.go")
			if test && (ours == "store/storetest" || ours == "store/memstore" || ours == "store/storetest/faultstore" ||
				ours == "internal/skip" || ours == "internal/testrig" && strings.HasPrefix(pkg, "test/") ||
				ours == "test/pgserver" || ours == pkg || slices.Contains(allowedTestImports[pkg], ours)) {
				continue
			}
			t.Errorf("%s imports %s, which the law forbids", file, ours)
		}
	}
}

// Only the store uses database drivers, and only a few packages start programs.
func TestFewPackagesImportDatabaseDriversOrExec(t *testing.T) {
	importers := map[string][]string{
		"modernc.org/sqlite": {"store/sqlitedb", "store/sqlite", "internal/testrig", "bench"},
		"database/sql":       {"internal/testrig", "bench"},
		"os/exec": {"runner", "runner/launcher", "internal/accounts", "internal/systemd",
			"internal/osservice/install", "internal/cli/admin", "internal/cli/connect", "internal/cli/input",
			"internal/skip", "internal/testrig", "bench", "test/demo", "test/posix", "test/pgserver", "internal/pages"},
		"github.com/jackc/pgx/v5/pgconn": {"store/pgdb", "store/postgres"},
	}
	for file, imports := range importsByGoFile(t) {
		pkg := filepath.ToSlash(filepath.Dir(file))
		for _, imported := range imports {
			if allowed, guarded := importers[imported]; guarded && !slices.Contains(allowed, pkg) &&
				!strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s imports %s, which only the packages in importers may import", file, imported)
			}
		}
	}
}

// Outside the store, only one file imports the SQL engine and its databases. All other code uses the interface
// store.Store. Only two files write to the table jobs: each such write must also update data that is derived from the
// jobs, such as counts.
func TestFewFilesImportSQLEngineOrWriteJobs(t *testing.T) {
	for file, imports := range importsByGoFile(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, engine := range []string{"store/engine", "store/sqlite", "store/postgres", "store/sqlitedb", "store/pgdb",
			"store/integrity", "store/move"} {
			if slices.Contains(imports, modulePathPrefix+engine) && file != "service/engine.go" &&
				!strings.HasPrefix(file, "store/") {
				t.Errorf("%s imports a package of the SQL engine; use store.Store", file)
			}
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// move.go also writes jobs, because it copies a queue to another database and transfers the leases.
		writes := file == "store/engine/tx.go" || file == "store/move/move.go"
		if strings.Contains(string(raw), "UPDATE jobs") && !writes {
			t.Errorf("%s changes stored jobs; use the functions in store/engine/tx.go", file)
		}
	}
}

// docs/architecture.md has a table with one row for each package. Every package, function, type and file that
// this page names exists.
func TestArchitecturePageNamesExistingCode(t *testing.T) {
	const page = "docs/architecture.md"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for name := range allowedImportsByPackage {
		if !regexp.MustCompile("(?m)^\\| `" + name + "` \\| [^|]+ \\|$").MatchString(text) {
			t.Errorf("%s: no table row describes the package %s", page, name)
		}
	}
	code := map[string]string{} // source text by package
	for file := range importsByGoFile(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			code[filepath.ToSlash(filepath.Dir(file))] += string(raw)
		}
	}
	names := regexp.MustCompile("`((?:[a-z]+/)*[a-z]+)\\.([A-Za-z]+)`").FindAllStringSubmatch(text, -1)
	checked := 0
	for _, name := range names {
		if _, known := allowedImportsByPackage[name[1]]; !known {
			continue // the text names something else, for example a table of the database
		}
		checked++
		if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + name[2] + `\b`).MatchString(code[name[1]]) {
			t.Errorf("%s names %s.%s, which does not exist", page, name[1], name[2])
		}
	}
	if checked == 0 {
		t.Errorf("%s names no function", page)
	}
	for _, file := range regexp.MustCompile("`([a-z_/]+\\.(?:go|txt))`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(file[1]); err != nil {
			t.Errorf("%s names a file that does not exist: %v", page, err)
		}
	}
}

// Only SQLite opens the database file. If other code opened and closed the file, the kernel would drop the
// locks that SQLite holds on it (fcntl(2)).
//
// Only the code that starts an editor runs a shell. The flag -c, after which a shell expects code, also occurs
// in the file that writes command lines for Windows, and in the file that finds arguments inside code.
func TestOnlyFewFilesOpenFilesOrRunShells(t *testing.T) {
	opens := map[string]string{ // by file, what the code in that file opens
		"store/sqlite/space.go":        "the reserve",
		"store/sqlite/backup.go":       "a copy",
		"store/sqlitedb/high_water.go": "the mark",
		"store/move/move.go":           "a copy",
		"store/sqlitedb/file.go":       "a database that does not exist yet",
		"store/integrity/restore.go":   "a copy",
		"store/integrity/outputs.go":   "an output file",
		"store/sqlitedb/os_unix.go":    "a directory",
		"store/sqlitedb/fs_windows.go": "a directory",
		"store/sqlite/sqlite.go":       "a database that does not exist yet",
	}
	for file := range importsByGoFile(t) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "bench/") ||
			strings.HasPrefix(file, "test/") || strings.HasPrefix(file, "internal/testrig/") {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(file, "store/") && strings.Contains(string(raw), "os.Open") && opens[file] == "" {
			t.Errorf("%s opens a file, which may be the database", file)
		}
		if strings.Contains(string(raw), `"-c"`) && file != "internal/cli/admin/editor_unix.go" &&
			file != "runner/cmdline/cmdline.go" && file != "internal/cli/input/shell_code.go" {
			t.Errorf("%s passes code to a shell", file)
		}
	}
}

// The file test/unix.txt lists exactly the tests that are not built on Windows, each with a reason. Every test
// that packaging/windows/NOT-UNDER-WINE.md names exists.
func TestEveryUnixOnlyTestHasAReason(t *testing.T) {
	raw, err := os.ReadFile("test/unix.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed, there := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		name, why, _ := strings.Cut(strings.TrimSpace(line), "\t")
		listed[name] = !strings.HasPrefix(name, "#") && why != ""
	}
	onWindows, onLinux := build.Default, build.Default
	onWindows.GOOS, onLinux.GOOS = "windows", "linux"
	name := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for file := range importsByGoFile(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		windows, err := onWindows.MatchFile(filepath.Split(file))
		linux, err2 := onLinux.MatchFile(filepath.Split(file))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		for _, found := range name.FindAllStringSubmatch(string(raw), -1) {
			switch there[found[1]] = true; {
			case !windows && !listed[found[1]]:
				t.Errorf("%s: %s is not built on Windows, and test/unix.txt does not say why", file, found[1])
			case windows && linux && listed[found[1]]:
				t.Errorf("%s: %s is built on Windows, but test/unix.txt lists it", file, found[1])
			}
		}
	}
	for name, unix := range listed {
		if unix && !there[name] {
			t.Errorf("test/unix.txt lists %s, which does not exist", name)
		}
	}
	const page = "packaging/windows/NOT-UNDER-WINE.md"
	if raw, err = os.ReadFile(page); err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(raw), -1) {
		if !there[name] {
			t.Errorf("%s names %s, which does not exist", page, name)
		}
	}
}

// importsByGoFile returns the imports of each Go file, by path.
func importsByGoFile(t *testing.T) map[string][]string {
	files := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "tools") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		files[path] = []string{}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			files[path] = append(files[path], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
