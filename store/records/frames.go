package records

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// StagedJob is a job in a frame. A frame holds the jobs that one request has added to a batch and that are
// not in the queue yet. The encoding of a job starts with the length and the checksum of the rest. The rest
// contains the numbers as varints, then the id and the texts, each preceded by its length.
type StagedJob struct {
	Seq   int64
	Draft queue.Job // queue, priority, attempts, times, demands and dependencies
	ID    string    // the id given by the user; "" if none
	Texts
}

// HasChosenID reports whether the user chose the job's id. Such an id has a row in the table staged_ids while
// the job is in a frame. For other jobs the id is the seq, and the row of each frame stores the range of its
// seqs.
func (s *StagedJob) HasChosenID() bool { return s.ID != "" }

// castagnoli returns the CRC-32 table of the Castagnoli polynomial, for which processors have an instruction.
// Go builds the table at its first use, so programs that do not need it start faster.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Append appends the encoding of the job.
func (s *StagedJob) Append(b []byte) ([]byte, error) {
	j := &s.Draft
	demands, err := EncodeDemands(j.Demands)
	if err != nil {
		return nil, err
	}
	var encodedDependencies []byte
	if len(j.DependsOn) > 0 {
		if encodedDependencies, err = json.Marshal(j.DependsOn); err != nil {
			return nil, err
		}
	}
	at := len(b)
	for _, n := range []int64{s.Seq, j.Priority, int64(j.MaxAttempts), int64(j.RunAt), int64(j.Delay), int64(j.ExpiresAt),
		int64(j.OnDependencyFailure), int64(j.HookEvents)} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range []string{s.ID, s.Labels, s.Terms, s.Input, j.Queue, demands, string(encodedDependencies)} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	var header [binary.MaxVarintLen64 + crc32.Size]byte
	size := binary.PutUvarint(header[:], uint64(len(b)-at))
	binary.LittleEndian.PutUint32(header[size:], crc32.Checksum(b[at:], castagnoli()))
	return slices.Insert(b, at, header[:size+crc32.Size]...), nil
}

// ReadFrame reads the jobs of a frame and skips damaged ones. isComplete reports whether it could read all
// jobs.
func ReadFrame(b []byte) (jobs []StagedJob, isComplete bool) {
	isComplete = true
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || len(b)-size < 4 || n > uint64(len(b)-size-4) {
			return jobs, false
		}
		sum, body := binary.LittleEndian.Uint32(b[size:]), b[size+4:][:n]
		b = b[size+4+int(n):]
		f, ok := readStagedJob(body)
		if !ok || crc32.Checksum(body, castagnoli()) != sum {
			isComplete = false
			continue
		}
		jobs = append(jobs, f)
	}
	return jobs, isComplete
}

func readStagedJob(b []byte) (job StagedJob, ok bool) {
	var numbers [8]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return job, false
		}
		numbers[i], b = n, b[size:]
	}
	var texts [7]string
	for i := range texts {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return job, false
		}
		texts[i], b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	var dependencies []queue.Dependency
	if texts[6] != "" && json.Unmarshal([]byte(texts[6]), &dependencies) != nil {
		return job, false
	}
	return StagedJob{numbers[0], queue.Job{
		Queue: texts[4], Demands: DecodeDemands([]byte(texts[5])), DependsOn: dependencies,
		OnDependencyFailure: queue.OnDependencyFailure(numbers[6]), Priority: numbers[1], MaxAttempts: int(numbers[2]),
		RunAt: queue.Millis(numbers[3]),
		Delay: time.Duration(numbers[4]), ExpiresAt: queue.Millis(numbers[5]), HookEvents: queue.HookEvents(numbers[7]),
	}, texts[0], Texts{texts[1], texts[2], texts[3]}}, len(b) == 0
}
