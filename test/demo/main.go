// Command demo runs a real batch of jobs, end to end, on a temporary queue. The batch has one job
// for each file of the project, a job that fails twice, a job that ends dead, a timeout and a
// delayed job. The service is killed in the middle. The command builds the program first, unless
// -bin names one. It exits with 0 only if every outcome was as expected. Start it in the root
// directory of the project.
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
		os.Exit(work(flag.Args()))
	}
	if err := run(*bin); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// work is the program of the jobs: this binary with other arguments.
func work(words []string) int {
	switch {
	case words[0] == "hash" && len(words) == 2:
		raw, err := os.ReadFile(words[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Printf("%x  %s\n", sha256.Sum256(raw), words[1])
		return 0
	case words[0] == "flaky" && len(words) == 2: // fails until its third run
		raw, _ := os.ReadFile(words[1])
		n, _ := strconv.Atoi(string(raw))
		if err := os.WriteFile(words[1], []byte(strconv.Itoa(n+1)), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("run", n+1)
		if n < 2 {
			return 1
		}
		return 0
	case words[0] == "long":
		fmt.Println("begun")
		time.Sleep(4 * time.Second)
		fmt.Println("done")
		return 0
	case words[0] == "sleep":
		time.Sleep(time.Minute)
		return 0
	}
	fmt.Fprintln(os.Stderr, "demo has no words but those of its own jobs")
	return 2
}

// demo is the queue and whether any outcome was wrong.
type demo struct {
	bin, self, dir string
	service        *exec.Cmd
	wrong          bool
}

func run(bin string) error {
	dir, err := os.MkdirTemp("", "queuectl-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{bin: bin, dir: filepath.Join(dir, "queue")}
	if d.self, err = os.Executable(); err != nil {
		return err
	}
	if bin == "" {
		d.bin = filepath.Join(dir, "queuectl"+suffix)
		build := exec.Command("go", "build", "-trimpath", "-o", dir+string(filepath.Separator), "./cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	defer d.q("service", "stop") // also ends running jobs
	return d.scenes()
}

func (d *demo) scenes() error {
	say("a service on an empty folder")
	if err := d.start(); err != nil {
		return err
	}
	fmt.Print(d.q("status"))
	files, ids, err := d.enqueueHashes()
	if err != nil {
		return err
	}

	say("jobs that do not go well")
	d.q("enqueue", "--id", "flaky", "--backoff-base", "0.5", "--", d.self, "flaky", filepath.Join(filepath.Dir(d.dir), "count"))
	d.q("enqueue", "--id", "hopeless", "--max-retries", "1", "--backoff-base", "1", "echo it cannot work >&2"+then+"exit 3")
	d.q("enqueue", "--id", "slow", "--timeout", "1s", "--max-retries", "0", "--", d.self, "sleep")
	d.q("enqueue", "--id", "later", "--delay", "3s", "echo it is time")

	if err := d.killService(); err != nil {
		return err
	}
	d.watchHashes(len(ids))
	raw, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	d.expect("a result", d.q("logs", ids[0]), fmt.Sprintf("%x  %s\n", sha256.Sum256(raw), files[0]))
	d.checkEnds()
	d.checkDead()

	say("how the queue is now")
	fmt.Print(d.q("status"))
	if d.wrong {
		return fmt.Errorf("something was not as expected")
	}
	fmt.Println("\nEverything was as expected.")
	return nil
}

// enqueueHashes enqueues a job for each file of the project.
func (d *demo) enqueueHashes() (files, ids []string, err error) {
	say("one job for each file of the project")
	files, err = projectFiles()
	if err != nil {
		return nil, nil, err
	}
	var list bytes.Buffer
	for _, file := range files {
		line, err := json.Marshal(map[string]any{"argv": []string{d.self, "hash", file}, "labels": map[string]string{"demo": "hash"}})
		if err != nil {
			return nil, nil, err
		}
		list.Write(append(line, '\n'))
	}
	jobs := filepath.Join(filepath.Dir(d.dir), "jobs.jsonl")
	if err := os.WriteFile(jobs, list.Bytes(), 0o600); err != nil {
		return nil, nil, err
	}
	ids = strings.Fields(d.q("enqueue", "--file", jobs))
	fmt.Printf("   %d jobs enqueued\n", len(ids))
	return files, ids, nil
}

// killService kills the service while a job runs, and checks that the job continues.
func (d *demo) killService() error {
	say("the service is killed in the middle, with a job running")
	d.q("enqueue", "--id", "long", "--priority", "100", "--", d.self, "long")
	for d.job("long").State != "processing" {
		time.Sleep(50 * time.Millisecond)
	}
	pid := d.job("long").PID
	d.service.Process.Kill()
	d.service.Wait()
	fmt.Printf("   killed; job long goes on as process %d\n", pid)
	if err := d.start(); err != nil {
		return err
	}
	d.expect("process of the running job", fmt.Sprint(d.job("long").PID), fmt.Sprint(pid))
	return nil
}

// watchHashes prints how many of the hash jobs are waiting, until all have ended.
func (d *demo) watchHashes(jobs int) {
	say("progress")
	for last := -1; ; time.Sleep(200 * time.Millisecond) {
		left := d.hashes("waiting")
		if left != last {
			fmt.Printf("   %d of %d files wait\n", left, jobs)
			last = left
		}
		if left == 0 {
			break
		}
	}
	for d.hashes("processing") > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	d.expect("files hashed", fmt.Sprint(d.hashes("completed")), fmt.Sprint(jobs))
}

func (d *demo) checkEnds() {
	say("what became of the others")
	d.q("wait", "flaky", "--timeout", "30")
	d.expect("job that fails twice", fmt.Sprintf("%s after %d attempts", d.job("flaky").State, d.job("flaky").Attempts), "completed after 3 attempts")
	d.expect("exit code of wait", fmt.Sprint(d.code("wait", "slow", "--timeout", "30")), "124")
	d.expect("job over its time", d.job("slow").State+", "+d.job("slow").Reason, "dead, timed_out")
	d.q("wait", "later", "--timeout", "30")
	d.expect("delayed job", strings.TrimSpace(d.q("logs", "later")), "it is time")
	d.q("wait", "long", "--timeout", "30")
	d.expect("job that outlived the service", strings.Join(strings.Fields(d.q("logs", "long")), " "), "begun done")
}

func (d *demo) checkDead() {
	say("the dead-letter queue")
	d.expect("exit code of wait", fmt.Sprint(d.code("wait", "hopeless", "--timeout", "30")), "3")
	fmt.Print(d.q("dlq", "list"))
	fmt.Print(d.q("show", "hopeless"))
	dead := strings.Fields(d.q("dlq", "list", "-q"))
	slices.Sort(dead)
	d.expect("dead jobs", strings.Join(dead, " "), "hopeless slow")
	d.q("dlq", "retry", "hopeless")
	d.expect("it fails again", fmt.Sprint(d.code("wait", "hopeless", "--timeout", "30")), "3")
	d.expect("its history stays", fmt.Sprint(len(d.job("hopeless").History)), "4")
}

// projectFiles lists the files of the project, in the same order each time.
func projectFiles() (files []string, err error) {
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path == ".git" || path == "dist"):
			return filepath.SkipDir
		case e.Type().IsRegular() && strings.TrimSuffix(path, suffix) != "queuectl":
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

func say(text string) { fmt.Printf("\n== %s\n", text) }

func (d *demo) expect(what, got, want string) {
	if got == want {
		fmt.Printf("   ok: %s: %s\n", what, strings.TrimSpace(got))
		return
	}
	fmt.Printf("   WRONG: %s: got %q, want %q\n", what, got, want)
	d.wrong = true
}

// start starts a service on the queue and waits until it answers.
func (d *demo) start() error {
	d.service = exec.Command(d.bin, "serve", "--dir", d.dir, "--workers", "2")
	log, err := os.OpenFile(filepath.Join(filepath.Dir(d.dir), "service.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.service.Stderr = log
	if err := d.service.Start(); err != nil {
		return err
	}
	for range 500 {
		if d.code("service", "status") == 0 {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	said, _ := os.ReadFile(log.Name())
	return fmt.Errorf("the service does not answer:\n%s", said)
}

// q runs the program and returns its output. It shows its errors to the user.
func (d *demo) q(words ...string) string {
	out, err := d.command(words).Output()
	if exit, failed := err.(*exec.ExitError); failed && len(exit.Stderr) > 0 {
		fmt.Printf("   %s", exit.Stderr)
	}
	return string(out)
}

// code runs the program and returns its exit code.
func (d *demo) code(words ...string) int {
	cmd := d.command(words)
	cmd.Run()
	return cmd.ProcessState.ExitCode()
}

func (d *demo) command(words []string) *exec.Cmd {
	return exec.Command(d.bin, append([]string{"--dir", d.dir}, words...)...)
}

// hashes returns the number of hash jobs in a state.
func (d *demo) hashes(state string) int {
	return len(strings.Fields(d.q("list", "-s", state, "--label", "demo=hash", "-q")))
}

// job is a job in the format of show.
type job struct {
	State, Reason string
	PID           int
	Attempts      int
	History       []struct{}
}

func (d *demo) job(id string) (j job) {
	if err := json.Unmarshal([]byte(d.q("show", id, "--json")), &j); err != nil {
		d.expect("show "+id, err.Error(), "a job")
	}
	return j
}
