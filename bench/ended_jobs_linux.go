package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/control"
)

// These constants are the targets and settings for a queue with many ended jobs.
const (
	maxReadCommandTime   = 50 * time.Millisecond  // maximum time of `queuectl list`, `queuectl status` or `queuectl show`
	maxCleanupDryRunTime = 200 * time.Millisecond // maximum time of `queuectl cleanup --dry-run`
	retainedJobsDivisor  = 10                     // measureRetention keeps 1/retainedJobsDivisor of the jobs
)

// insertEndedJobsSQL creates n completed jobs whose times are spread evenly over the last twenty days, as if they
// had run one after another.
var insertEndedJobsSQL = []string{
	`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @n)
		INSERT INTO jobs (seq, id, uid, state, place, lane, rank, priority, max_attempts, attempts, runs, fence, created_at, updated_at, run_at, due_at, since, arrival,
			started_at, ended_at, exit_code, worker, terms, stored)
		SELECT i, i, 0, 6, 0, 0, i, 5, 4, 1, 1, 1, @from + i * @step, @from + i * @step, @from + i * @step, @from + i * @step, @from + i * @step, i,
			@from + i * @step, @from + i * @step + 10, 0, 'w1', '{"command":"true","shell":"/bin/sh -c","umask":18,"kill_after":10000000000,"on_lost":"retry","output_limit":1048576}', 600 FROM n`,
	`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @n)
		INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, error, counted, cpu_us, peak_rss, leftovers, dropped)
		SELECT i, 1, 1, 'w1', 'here', 4711, @from + i * @step, @from + i * @step + 10, 0, 0, '', '', 1, 900, 2000000, 0, 0 FROM n`,
	`UPDATE meta SET next_seq = @n + 1, enqueued = @n, completed = @n`,
	`INSERT INTO users (uid, waiting, bytes, outputs) VALUES (0, 0, @n * 600, 0)`,
}

// measureEndedJobs measures a queue with a million ended jobs: how long the commands that read the queue, an enqueue
// and a claim take. It also measures how long the enqueues of another client take while the service removes most of the
// ended jobs.
func (b *bench) measureEndedJobs(emptyQueue *service) (err error) {
	n := b.itemsToMeasure(1_000_000, 100_000)
	full, err := b.startServiceWithEndedJobs(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.stopAndRemoveDir()) }()
	if err := b.measureReadCommands(full, n); err != nil {
		return err
	}
	if err := b.compareQueueCosts([2]*service{emptyQueue, full}, [2]int{0, n},
		fmt.Sprintf("%d ended jobs", n)); err != nil {
		return err
	}
	return b.measureRetention(full, n)
}

// startServiceWithEndedJobs starts a service on a queue that contains the given number of ended jobs.
func (b *bench) startServiceWithEndedJobs(endedJobCount int) (*service, error) {
	s, err := b.startService()
	if err != nil {
		return nil, err
	}
	_, err = s.ChangeSetting(s.ctx, control.ConfigSetParams{SettingName: "retention_max_jobs",
		Value: control.SettingValue(fmt.Sprint(2 * endedJobCount))})
	if err := errors.Join(err, s.stop()); err != nil {
		return nil, err
	}
	db, err := openDB(filepath.Join(s.dir, "queuectl.db"), "&_pragma=synchronous(OFF)")
	if err != nil {
		return nil, err
	}
	const span = 20 * 24 * time.Hour
	from, step := time.Now().Add(-span).UnixMilli(), span.Milliseconds()/int64(endedJobCount)
	for _, text := range insertEndedJobsSQL {
		if _, err := db.Exec(text, sql.Named("n", endedJobCount), sql.Named("from", from),
			sql.Named("step", step)); err != nil {
			return nil, errors.Join(fmt.Errorf("fill: %w", err), db.Close())
		}
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return b.startServiceIn(s.dir)
}

// measureReadCommands measures the run times of the queuectl commands that only read the queue.
func (b *bench) measureReadCommands(s *service, endedJobCount int) error {
	for _, look := range []struct {
		args    []string
		maxTime time.Duration
	}{
		{[]string{"list"}, maxReadCommandTime},
		{[]string{"list", "-s", "dead"}, maxReadCommandTime},
		{[]string{"status"}, maxReadCommandTime},
		{[]string{"show", fmt.Sprint(endedJobCount / 2)}, maxReadCommandTime},
		{[]string{"cleanup", "--dry-run"}, maxCleanupDryRunTime},
	} {
		var runTimes []float64
		for range 4 * b.measurementRounds {
			cmd := exec.Command(b.queuectlPath, append([]string{"--dir", s.dir}, look.args...)...)
			cmd.Env = measuredProgramEnv(s.dir)
			began := time.Now()
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%v: %w", look.args, err)
			}
			runTimes = append(runTimes, time.Since(began).Seconds())
		}
		what := "`" + look.args[0]
		for _, w := range look.args[1:] {
			what += " " + w
		}
		b.results.addRowWithVerdict(row{fmt.Sprintf("%s` with %d ended jobs", what, endedJobCount),
			formatMillis(median(runTimes)) + " (worst " +
				formatMillis(quantile(runTimes, 1)) + ")", "", "", "≤ " + formatMillis(look.maxTime.Seconds()), ""},
			median(runTimes) <= look.maxTime.Seconds())
	}
	return nil
}

// measureRetention lets the service remove most of the ended jobs while another client enqueues. It measures how long
// the removal takes, and how long each enqueue takes during the removal.
func (b *bench) measureRetention(s *service, endedJobCount int) error {
	keep := endedJobCount / retainedJobsDivisor
	var elapsed time.Duration
	other, err := s.measureEnqueuesDuring(func() error {
		began := time.Now()
		if _, err := s.ChangeSetting(s.ctx, control.ConfigSetParams{SettingName: "retention_max_jobs",
			Value: control.SettingValue(fmt.Sprint(keep))}); err != nil {
			return err
		}
		for {
			have, err := s.completedJobCount()
			if err != nil || have <= keep {
				elapsed = time.Since(began)
				return err
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
				return fmt.Errorf("retention has not finished, %d of %d ended jobs remain: %w", have, endedJobCount, s.ctx.Err())
			}
		}
	})
	if err != nil {
		return err
	}
	p99 := quantile(other.latencySeconds, 0.99)
	b.results.addRowWithVerdict(row{fmt.Sprintf("`enqueue` by another client while retention removes %d ended jobs, p99",
		endedJobCount-keep),
		formatMillis(p99) + " (worst " + formatMillis(quantile(other.latencySeconds, 1)) + ")",
		formatRate(float64(endedJobCount-keep)/elapsed.Seconds()) + " jobs removed", "",
		"≤ " + formatMillis(maxOtherClientP99Latency.Seconds()), ""}, p99 <= maxOtherClientP99Latency.Seconds())
	return nil
}
