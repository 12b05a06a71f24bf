// Command demo runs jobs on a temporary queue. There is one job for each file of the project, a job that fails twice, a
// job that fails for good, a job with a timeout, and a delayed job. While jobs run, demo kills the service. Command
// demo first builds queuectl, or uses the program that the flag -bin names. It exits with 0 only if every outcome was
// as expected. Start it in the root directory of the project.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	bin := flag.String("bin", "", "`program` to show, instead of building one")
	flag.Parse()
	if flag.NArg() > 0 {
		os.Exit(runJob(flag.Args()))
	}
	if err := runDemo(*bin); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// runJob does the work of a job and returns its exit code. The jobs of the demo execute this program with args.
func runJob(args []string) int {
	switch {
	case args[0] == "hash" && len(args) == 2:
		raw, err := os.ReadFile(args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Printf("%x  %s\n", sha256.Sum256(raw), args[1])
		return 0
	case args[0] == "flaky" && len(args) == 2: // fails until its third run
		raw, _ := os.ReadFile(args[1])
		n, _ := strconv.Atoi(string(raw))
		if err := os.WriteFile(args[1], []byte(strconv.Itoa(n+1)), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("run", n+1)
		if n < 2 {
			return 1
		}
		return 0
	case args[0] == "long":
		fmt.Println("begun")
		time.Sleep(4 * time.Second)
		fmt.Println("done")
		return 0
	case args[0] == "sleep":
		time.Sleep(time.Minute)
		return 0
	}
	fmt.Fprintln(os.Stderr, "unknown arguments; demo accepts only those that its jobs use")
	return 2
}

// demo contains the paths and the service of the temporary queue, and whether any outcome was wrong.
type demo struct {
	queuectlPath, selfPath, queueDir string
	service                          *exec.Cmd
	hasWrongOutcome                  bool
}

// runDemo runs the demo with the queuectl at queuectlPath. If queuectlPath is "", it builds queuectl first.
func runDemo(queuectlPath string) error {
	dir, err := os.MkdirTemp("", "queuectl-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{queuectlPath: queuectlPath, queueDir: filepath.Join(dir, "queue")}
	if d.selfPath, err = os.Executable(); err != nil {
		return err
	}
	if queuectlPath == "" {
		d.queuectlPath = filepath.Join(dir, "queuectl"+exeSuffix)
		build := exec.Command("go", "build", "-trimpath", "-o", dir+string(filepath.Separator), "./cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	defer d.runQueuectl("service", "stop") // this also ends jobs that still run
	return d.runScenario()
}

func (d *demo) runScenario() error {
	printHeading("a service with an empty directory")
	if err := d.startService(); err != nil {
		return err
	}
	fmt.Print(d.runQueuectl("status"))
	files, ids, err := d.enqueueHashJobs()
	if err != nil {
		return err
	}

	printHeading("jobs that do not go well")
	d.runQueuectl("enqueue", "--id", "flaky", "--backoff-base", "0.5", "--", d.selfPath, "flaky",
		filepath.Join(filepath.Dir(d.queueDir), "count"))
	d.runQueuectl("enqueue", "--id", "hopeless", "--max-retries", "1", "--backoff-base", "1",
		"echo it cannot work >&2"+commandSeparator+"exit 3")
	d.runQueuectl("enqueue", "--id", "slow", "--timeout", "1s", "--max-retries", "0", "--", d.selfPath, "sleep")
	d.runQueuectl("enqueue", "--id", "later", "--delay", "3s", "echo it is time")

	if err := d.killService(); err != nil {
		return err
	}
	d.printHashProgress(len(ids))
	raw, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	d.checkOutcome("a result", d.runQueuectl("logs", ids[0]), fmt.Sprintf("%x  %s\n", sha256.Sum256(raw), files[0]))
	d.checkNonHashJobs()
	d.checkDeadLetterQueue()

	printHeading("how the queue is now")
	fmt.Print(d.runQueuectl("status"))
	if d.hasWrongOutcome {
		return fmt.Errorf("something was not as expected")
	}
	fmt.Println("\nEverything was as expected.")
	return nil
}

// enqueueHashJobs enqueues a job for each file of the project. It returns the files and the ids of their jobs.
func (d *demo) enqueueHashJobs() (files, jobIDs []string, err error) {
	printHeading("one job for each file of the project")
	files, err = listProjectFiles()
	if err != nil {
		return nil, nil, err
	}
	var list bytes.Buffer
	for _, file := range files {
		line, err := json.Marshal(map[string]any{"argv": []string{d.selfPath, "hash", file},
			"labels": map[string]string{"demo": "hash"}})
		if err != nil {
			return nil, nil, err
		}
		list.Write(append(line, '\n'))
	}
	jobs := filepath.Join(filepath.Dir(d.queueDir), "jobs.jsonl")
	if err := os.WriteFile(jobs, list.Bytes(), 0o600); err != nil {
		return nil, nil, err
	}
	jobIDs = strings.Fields(d.runQueuectl("enqueue", "--file", jobs))
	fmt.Printf("   %d jobs enqueued\n", len(jobIDs))
	return files, jobIDs, nil
}

// killService kills the service while a job runs. It checks that the job continues.
func (d *demo) killService() error {
	printHeading("the service is killed in the middle, with a job running")
	d.runQueuectl("enqueue", "--id", "long", "--priority", "100", "--", d.selfPath, "long")
	for d.showJob("long").State != "processing" {
		time.Sleep(50 * time.Millisecond)
	}
	pid := d.showJob("long").PID
	d.service.Process.Kill()
	d.service.Wait()
	fmt.Printf("   killed; job long still runs as process %d\n", pid)
	if err := d.startService(); err != nil {
		return err
	}
	d.checkOutcome("process of the running job", fmt.Sprint(d.showJob("long").PID), fmt.Sprint(pid))
	return nil
}

// printHashProgress prints how many of the hash jobs are still waiting, until all of them have ended.
func (d *demo) printHashProgress(jobCount int) {
	printHeading("progress")
	for last := -1; ; time.Sleep(200 * time.Millisecond) {
		waiting := d.countHashJobs("waiting")
		if waiting != last {
			fmt.Printf("   %d of %d files wait\n", waiting, jobCount)
			last = waiting
		}
		if waiting == 0 {
			break
		}
	}
	for d.countHashJobs("processing") > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	d.checkOutcome("files hashed", fmt.Sprint(d.countHashJobs("completed")), fmt.Sprint(jobCount))
}

func (d *demo) checkNonHashJobs() {
	printHeading("the other jobs")
	d.runQueuectl("wait", "flaky", "--timeout", "30")
	d.checkOutcome("job that fails twice", fmt.Sprintf("%s after %d attempts", d.showJob("flaky").State,
		d.showJob("flaky").Attempts),
		"completed after 3 attempts")
	d.checkOutcome("exit code of wait", fmt.Sprint(d.queuectlExitCode("wait", "slow", "--timeout", "30")), "124")
	d.checkOutcome("job over its time", d.showJob("slow").State+", "+d.showJob("slow").Reason, "dead, timed_out")
	d.runQueuectl("wait", "later", "--timeout", "30")
	d.checkOutcome("delayed job", strings.TrimSpace(d.runQueuectl("logs", "later")), "it is time")
	d.runQueuectl("wait", "long", "--timeout", "30")
	d.checkOutcome("job that outlived the service", strings.Join(strings.Fields(d.runQueuectl("logs", "long")), " "),
		"begun done")
}

func (d *demo) checkDeadLetterQueue() {
	printHeading("the dead-letter queue")
	d.checkOutcome("exit code of wait", fmt.Sprint(d.queuectlExitCode("wait", "hopeless", "--timeout", "30")), "3")
	fmt.Print(d.runQueuectl("dlq", "list"))
	fmt.Print(d.runQueuectl("show", "hopeless"))
	dead := strings.Fields(d.runQueuectl("dlq", "list", "-q"))
	slices.Sort(dead)
	d.checkOutcome("dead jobs", strings.Join(dead, " "), "hopeless slow")
	d.runQueuectl("dlq", "retry", "hopeless")
	d.checkOutcome("it fails again", fmt.Sprint(d.queuectlExitCode("wait", "hopeless", "--timeout", "30")), "3")
	d.checkOutcome("its history stays", fmt.Sprint(len(d.showJob("hopeless").History)), "4")
}

// listProjectFiles lists the files of the project in a fixed order.
func listProjectFiles() (files []string, err error) {
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path == ".git" || path == "dist"):
			return filepath.SkipDir
		case e.Type().IsRegular() && strings.TrimSuffix(path, exeSuffix) != "queuectl":
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

func printHeading(text string) { fmt.Printf("\n== %s\n", text) }

// checkOutcome prints whether an outcome is the expected one, and records a failure if it is not.
func (d *demo) checkOutcome(outcomeName, got, want string) {
	if got == want {
		fmt.Printf("   ok: %s: %s\n", outcomeName, strings.TrimSpace(got))
		return
	}
	fmt.Printf("   WRONG: %s: got %q, want %q\n", outcomeName, got, want)
	d.hasWrongOutcome = true
}

// startService starts a service on the queue and waits until it answers.
func (d *demo) startService() error {
	d.service = exec.Command(d.queuectlPath, "serve", "--dir", d.queueDir, "--workers", "2")
	log, err := os.OpenFile(filepath.Join(filepath.Dir(d.queueDir), "service.log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.service.Stderr = log
	if err := d.service.Start(); err != nil {
		return err
	}
	for range 500 {
		if d.queuectlExitCode("service", "status") == 0 {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name())
	return fmt.Errorf("the service does not answer:\n%s", text)
}

// queuectl runs the program queuectl and returns its stdout. It prints the stderr of a failed command.
func (d *demo) runQueuectl(args ...string) string {
	out, err := d.queuectlCommand(args).Output()
	if exit, failed := err.(*exec.ExitError); failed && len(exit.Stderr) > 0 {
		fmt.Printf("   %s", exit.Stderr)
	}
	return string(out)
}

// queuectlExitCode runs the program queuectl and returns its exit code.
func (d *demo) queuectlExitCode(args ...string) int {
	cmd := d.queuectlCommand(args)
	cmd.Run()
	return cmd.ProcessState.ExitCode()
}

func (d *demo) queuectlCommand(args []string) *exec.Cmd {
	return exec.Command(d.queuectlPath, append([]string{"--dir", d.queueDir}, args...)...)
}

// countHashJobs returns the number of hash jobs in a state.
func (d *demo) countHashJobs(state string) int {
	return len(strings.Fields(d.runQueuectl("list", "-s", state, "--label", "demo=hash", "-q")))
}

// job contains the fields that the demo reads of a job in the JSON output of `queuectl show`.
type job struct {
	State, Reason string
	PID           int
	Attempts      int
	History       []struct{}
}

func (d *demo) showJob(jobID string) (j job) {
	if err := json.Unmarshal([]byte(d.runQueuectl("show", jobID, "--json")), &j); err != nil {
		d.checkOutcome("show "+jobID, err.Error(), "a job")
	}
	return j
}
