package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// These are the exit codes of the benchmark.
const (
	exitCodeFailed       = 1 // a check failed (for example, a job was lost) or a measurement failed
	exitCodeTargetMissed = 2 // all checks passed, but a target was missed
)

// bench is one run of the benchmark.
type bench struct {
	dir                 string // temporary directory on a real disk
	queuectlPath        string // path of the shipped program
	helloProgramPath    string // path of a Go program that only prints a greeting
	benchProgramPath    string // path of this program
	quickMode           bool
	smokeMode           bool
	measurementRounds   int // number of runs of each measurement
	jobsPerDrain        int // number of jobs in a drain
	results             resultTable
	startedServiceCount int // number of services already started; used to name the directory of the next service
	// jobUser is the account that the jobs run as. If it is set, a launcher starts the runners as root. If it
	// is "", the service starts its own runner.
	jobUser string
}

// measurements lists the measurements, in the order of the report.
var measurements = []struct {
	name    string
	measure func(*bench) error
}{
	{"drain", (*bench).measureDrain},
	{"start", withFreshService((*bench).measureStarts)},
	{"cli", withFreshService((*bench).measureEnqueueCommand)},
	{"enqueue", withFreshService((*bench).measureEnqueue)},
	{"batch", withFreshService((*bench).measureBatch)},
	{"depth", withFreshService((*bench).measureFullQueue)},
	{"ended", withFreshService((*bench).measureEndedJobs)},
	{"screen", (*bench).measureScreen},
	{"page", (*bench).measureDashboardPage},
	{"output", withFreshService((*bench).measureOutput)},
	{"memory", withFreshService((*bench).measureMemory)},
	{"idle", withFreshService((*bench).measureIdle)},
	{"fsync", (*bench).checkFsyncBeforeReply},
}

func main() {
	if spec, ok := os.LookupEnv(bareCommandsEnvVariable); ok {
		runBareCommands(spec)
		return
	}
	b := &bench{}
	only := flag.String("only", "", "comma-separated list of the subjects to measure (default: all)")
	dir := flag.String("dir", ".", "directory on a real disk, in which to create a temporary directory")
	flag.BoolVar(&b.quickMode, "quick", false, "take fewer and shorter measurements; missed targets do not "+
		"change the exit code")
	flag.BoolVar(&b.smokeMode, "smoke", false,
		"take each measurement once, as small as possible, to check that it works; "+
			"missed targets do not change the exit code")
	flag.IntVar(&b.measurementRounds, "pairs", 0, "runs of each measurement (default 5, or 2 with -quick)")
	flag.IntVar(&b.jobsPerDrain, "jobs", 0, "jobs to drain in each run (default 3000, or 600 with -quick)")
	flag.StringVar(&b.jobUser, "as", "", "run all jobs as this `USER`, with run_as = submitter and runners "+
		"of root; needs root")
	flag.Parse()
	b.setDefaults()
	if err := b.runMeasurements(*dir, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitCodeFailed)
	}
	if b.results.missedTargetCount > 0 && !b.quickMode && !b.smokeMode {
		os.Exit(exitCodeTargetMissed)
	}
}

func (b *bench) setDefaults() {
	if b.measurementRounds <= 0 {
		b.measurementRounds = b.itemsToMeasure(5, 2)
		if b.smokeMode {
			b.measurementRounds = 1
		}
	}
	if b.jobsPerDrain <= 0 {
		b.jobsPerDrain = b.itemsToMeasure(3000, 600)
	}
}

// quickToSmokeItemRatio is the number of items measured with -quick, divided by the number of items measured with
// -smoke.
const quickToSmokeItemRatio = 20

// itemsToMeasure returns how many items to measure: fullCount by default, quickCount with -quick, and a fraction of
// quickCount with -smoke.
func (b *bench) itemsToMeasure(fullCount, quickCount int) int {
	if b.smokeMode {
		return max(1, quickCount/quickToSmokeItemRatio)
	}
	if b.quickMode {
		return quickCount
	}
	return fullCount
}

// runMeasurements measures the selected subjects and prints the table. If a subject fails, runMeasurements still prints
// the table, because the results of the other subjects are valid.
func (b *bench) runMeasurements(dir, measurementNames string) (err error) {
	if err := b.buildPrograms(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	kind, err := diskFileSystem(b.dir)
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for _, name := range strings.FieldsFunc(measurementNames, func(r rune) bool { return r == ',' }) {
		asked[name] = true
	}
	began := time.Now()
	var failures []error
	for _, s := range measurements {
		if len(asked) > 0 && !asked[s.name] {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s …\n", s.name)
		start := time.Now()
		if err := s.measure(b); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.name, err))
		}
		fmt.Fprintf(os.Stderr, "bench: %s took %v\n", s.name, time.Since(start).Round(100*time.Millisecond))
	}
	fmt.Printf("%d CPUs, %s, Go %s, disk %s; medians of %d alternating runs; total time %v.\n\n",
		runtime.NumCPU(), cpuModel(), strings.TrimPrefix(runtime.Version(), "go"), kind, b.measurementRounds,
		time.Since(began).Round(time.Second))
	b.results.print(os.Stdout)
	return errors.Join(failures...)
}

// buildPrograms creates a temporary directory below dir and builds the programs in it.
func (b *bench) buildPrograms(dir string) (err error) {
	if b.benchProgramPath, err = os.Executable(); err != nil {
		return err
	}
	if dir, err = os.MkdirTemp(dir, ".bench-*"); err != nil {
		return fmt.Errorf("cannot create a temporary directory: %w", err)
	}
	if b.dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	b.queuectlPath, b.helloProgramPath = filepath.Join(b.dir, "queuectl"), filepath.Join(b.dir, "hello")
	source := filepath.Join(b.dir, "hello.go")
	const hello = "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"hello\\n\") }\n"
	err = os.WriteFile(source, []byte(hello), 0o600)
	if err == nil {
		err = errors.Join(buildProgram(b.dir, "github.com/queuectl/queuectl/cmd/..."), buildProgram(b.dir, source))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(b.dir))
	}
	return nil
}

// buildProgram builds a static program without file paths in it, like a release. Then it copies the program, as an
// installation does. The copy makes the measurement fair: the linker leaves its output in the page cache as single
// pages, which makes small programs start 5 % slower and large programs 17 % slower.
func buildProgram(targetDir, sourcePackage string) error {
	linked, err := os.MkdirTemp(targetDir, "linked-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(linked)
	cmd := exec.Command("go", "build", "-trimpath", "-o", linked+"/", sourcePackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w\n%s", sourcePackage, err, out)
	}
	programs, err := os.ReadDir(linked)
	if err != nil {
		return err
	}
	for _, p := range programs {
		program, err := os.ReadFile(filepath.Join(linked, p.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(targetDir, p.Name()), program, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
