package sqlstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// jobColumns are the columns of a whole job, in the order that readJob takes
// them.
const jobColumns = `seq, id, queue, uid, state, priority, max_attempts, attempts, runs, fence,
	created_at, updated_at, run_at, due_at, since, arrival, expires_at, started_at, ended_at,
	exit_code, signal, pid, worker, reason, error, terms, deferred, suspect, crashes`

// uidColumn is where uid stands among them.
const uidColumn = 3

// jobWidth is how many they are.
var jobWidth = strings.Count(jobColumns, ",") + 1

// values is a row that database/sql has scanned.
type values []any

func (v values) num(column int) int64 {
	n, _ := v[column].(int64)
	return n
}

func (v values) text(column int) string {
	s, _ := v[column].(string)
	return s
}

// errDamaged is the error of a row whose terms cannot be read.
var errDamaged = errors.New("damaged")

// readJob makes a job of a row of jobColumns. If its terms are damaged, the job
// is whole but for them, and its Error says so as the error does.
func readJob(r row) (queue.Job, error) {
	n, t := r.num, r.text
	m := func(i int) queue.Millis { return queue.Millis(n(i)) }
	j := queue.Job{
		Seq: n(0), ID: t(1), Queue: t(2), UID: int(n(3)), State: queue.State(n(4)),
		Priority: n(5), MaxAttempts: int(n(6)), Attempts: int(n(7)), Runs: int(n(8)), Fence: n(9),
		CreatedAt: m(10), UpdatedAt: m(11), RunAt: m(12), DueAt: m(13), Since: m(14), Arrival: n(15),
		ExpiresAt: m(16), StartedAt: m(17), EndedAt: m(18),
		ExitCode: n(19), Signal: int(n(20)), PID: int(n(21)), WorkerID: t(22),
		Reason: queue.Reason(t(23)), Error: t(24), Deferred: int(n(26)), Suspect: n(27) != 0, Crashes: int(n(28)),
	}
	if err := json.Unmarshal([]byte(t(25)), &j.Terms); err != nil {
		j.Terms = queue.Terms{}
		err = fmt.Errorf("the terms of job %s are %w: %w", j.ID, errDamaged, err)
		j.Error = err.Error()
		return j, err
	}
	return j, nil
}

// attemptColumns are the columns of an attempt, in the order of readAttempt;
// its output is read apart.
const attemptColumns = `n, fence, worker, node, pid, started_at, ended_at, exit_code, signal,
	reason, error, counted, cpu_us, peak_rss, leftovers, dropped, output_bytes`

// numbers reads meta.reserved or meta.users: pairs of numbers.
func numbers(list string) (map[int64]int64, error) {
	of := map[int64]int64{}
	for entry := range strings.FieldsSeq(list) {
		first, second, _ := strings.Cut(entry, "/")
		n, err := strconv.ParseInt(first, 10, 64)
		m, err2 := strconv.ParseInt(second, 10, 64)
		if err = errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("the database is damaged: a list of meta: %w", err)
		}
		of[n] = m
	}
	return of, nil
}

// appendNumbers adds a pair to such a list.
func appendNumbers(list []byte, first, second int64) []byte {
	list = append(strconv.AppendInt(list, first, 10), '/')
	return append(strconv.AppendInt(list, second, 10), ' ')
}
