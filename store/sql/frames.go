package sql

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// frame holds the jobs of one request of a batch.
// See docs/decisions/0009.
type frame struct {
	id       int64
	count    int64 // number of jobs
	bytes    int64 // size of the jobs in bytes
	jobs     []stagedJob
	complete bool // all jobs could be read
}

// firstFrame reads the first frame of a batch.
func (t *tx) firstFrame(batch int64) (f frame, found bool, err error) {
	err = t.Query(func(r database.Row) (bool, error) {
		f.id, f.count, f.bytes, found = r.Num(0), r.Num(1), r.Num(2), true
		f.jobs, f.complete = readFrame(r.View(3))
		f.complete = f.complete && int64(len(f.jobs)) == f.count
		return false, nil
	}, `SELECT n, count, bytes, jobs FROM frames WHERE batch = ? ORDER BY n LIMIT 1`, batch)
	return f, found, err
}

// freeIDs frees the ids that the user chose for a frame's jobs.
func (t *tx) freeIDs(f *frame) error {
	for i := range f.jobs {
		if !f.jobs[i].named() {
			continue
		}
		if err := t.Exec(`DELETE FROM staged_ids WHERE id = ?`, f.jobs[i].id); err != nil {
			return err
		}
	}
	return nil
}

// dropFrame removes a frame and the ids of its jobs.
func (t *tx) dropFrame(f *frame) error {
	if err := t.freeIDs(f); err != nil {
		return err
	}
	err := t.Exec(`DELETE FROM frames WHERE n = ?`, f.id)
	return err
}

// detach separates a damaged frame from its batch and keeps it, so that an administrator can examine it. The
// frame's readable jobs are already in the queue. The batch continues without its unreadable jobs; the column
// "count" of the frame then holds their number.
func (t *tx) detach(b *batch, f *frame) error {
	if err := t.freeIDs(f); err != nil {
		return err
	}
	ended, err := t.Count(
		`INSERT INTO ended (parent, uid, state, upto) SELECT parent, CAST(? AS BIGINT), 0, max(edges.id) FROM frames JOIN edges ON parent BETWEEN first AND last
		WHERE n = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE seq = parent) GROUP BY parent`, int64(b.uid), f.id)
	if err != nil {
		return err
	}
	t.s.mem.undecided += ended // dependants of lost jobs are decided as if these jobs were removed
	t.wakeAt(t.now)
	lost := max(1, f.count-int64(len(f.jobs)))
	if err := t.Exec(`UPDATE frames SET batch = -batch, count = ? WHERE n = ?`, lost, f.id); err != nil {
		return err
	}
	name, uid := b.name, b.uid
	t.afterCommit = append(t.afterCommit, func() {
		t.s.log.Error("part of a committed batch is damaged, so some of the batch's jobs are not in the queue; "+
			"see: queuectl doctor", "batch", name, "uid", uid, "jobs", lost)
	})
	return nil
}

// stagedJob is a job in a frame. Its encoding starts with the length and the checksum of the rest. The rest
// holds the numbers as varints, then the id and the texts, each after its length.
type stagedJob struct {
	seq   int64
	draft queue.Job // queue, priority, attempts, times, demands and dependencies
	id    string    // the id given by the user; "" if none
	texts
}

// named reports whether the user chose the job's id. Such an id has its own row while the job is in a frame.
// A job without one needs no row: its id is its seq, and frames store the ranges of their seqs.
func (f *stagedJob) named() bool { return f.id != "" }

// castagnoli returns the CRC-32 table of the polynomial for which processors have an instruction. The table
// is built at its first use, so that programs that never use it start faster.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func (f *stagedJob) append(b []byte) ([]byte, error) {
	j := &f.draft
	demands, err := demandsText(j.Demands)
	if err != nil {
		return nil, err
	}
	var after []byte
	if len(j.DependsOn) > 0 {
		if after, err = json.Marshal(j.DependsOn); err != nil {
			return nil, err
		}
	}
	at := len(b)
	for _, n := range []int64{f.seq, j.Priority, int64(j.MaxAttempts), int64(j.RunAt), int64(j.Delay), int64(j.ExpiresAt),
		int64(j.OnDependencyFailure), int64(j.Hooks)} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range []string{f.id, f.labels, f.terms, f.input, j.Queue, demands, string(after)} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	var head [binary.MaxVarintLen64 + crc32.Size]byte
	size := binary.PutUvarint(head[:], uint64(len(b)-at))
	binary.LittleEndian.PutUint32(head[size:], crc32.Checksum(b[at:], castagnoli()))
	return slices.Insert(b, at, head[:size+crc32.Size]...), nil
}

// readFrame reads all readable jobs of a frame. complete reports whether all jobs were readable.
func readFrame(b []byte) (jobs []stagedJob, complete bool) {
	complete = true
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || len(b)-size < 4 || n > uint64(len(b)-size-4) {
			return jobs, false
		}
		sum, body := binary.LittleEndian.Uint32(b[size:]), b[size+4:][:n]
		b = b[size+4+int(n):]
		f, ok := readStaged(body)
		if !ok || crc32.Checksum(body, castagnoli()) != sum {
			complete = false
			continue
		}
		if jobs == nil { // allocate once, assuming that all jobs have about the size of the first
			jobs = make([]stagedJob, 0, min(queue.MaxBatch, len(b)/(size+4+int(n))+1))
		}
		jobs = append(jobs, f)
	}
	return jobs, complete
}

func readStaged(b []byte) (f stagedJob, ok bool) {
	var numbers [8]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return f, false
		}
		numbers[i], b = n, b[size:]
	}
	var list [7]string
	for i := range list {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return f, false
		}
		list[i], b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	var after []queue.Dependency
	if list[6] != "" && json.Unmarshal([]byte(list[6]), &after) != nil {
		return f, false
	}
	return stagedJob{numbers[0], queue.Job{
		Queue: list[4], Demands: readDemands([]byte(list[5])), DependsOn: after,
		OnDependencyFailure: queue.OnDependencyFailure(numbers[6]), Priority: numbers[1], MaxAttempts: int(numbers[2]),
		RunAt: queue.Millis(numbers[3]),
		Delay: time.Duration(numbers[4]), ExpiresAt: queue.Millis(numbers[5]), Hooks: queue.HookSet(numbers[7]),
	}, list[0], texts{list[1], list[2], list[3]}}, len(b) == 0
}
