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
	Seq      int64
	Draft    queue.Job // queue, priority, attempts, times, demands and dependencies
	ChosenID string    // the id given by the user; "" if none
	EncodedTexts
}

// HasChosenID reports whether the user chose the job's id. Such an id has a row in the table staged_ids while the job
// is in a frame (the jobs of one request). For other jobs the id is the seq, and the row of each frame stores the range
// of its seqs.
func (s *StagedJob) HasChosenID() bool { return s.ChosenID != "" }

// castagnoliTable returns the CRC-32 table of the Castagnoli polynomial, for which processors have an instruction.
// Go builds the table at its first use, so programs that do not need it start faster.
func castagnoliTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// AppendEncoding appends the encoding of the job.
func (s *StagedJob) AppendEncoding(b []byte) ([]byte, error) {
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
	for _, text := range []string{s.ChosenID, s.Labels, s.Settings, s.Input, j.Queue, demands,
		string(encodedDependencies)} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	var header [binary.MaxVarintLen64 + crc32.Size]byte
	size := binary.PutUvarint(header[:], uint64(len(b)-at))
	binary.LittleEndian.PutUint32(header[size:], crc32.Checksum(b[at:], castagnoliTable()))
	return slices.Insert(b, at, header[:size+crc32.Size]...), nil
}

// DecodeFrame reads the jobs of a frame, which holds the jobs of one request, and skips damaged ones. allDecoded
// reports whether it could read all jobs.
func DecodeFrame(frame []byte) (jobs []StagedJob, allDecoded bool) {
	allDecoded = true
	for len(frame) > 0 {
		n, size := binary.Uvarint(frame)
		if size <= 0 || len(frame)-size < 4 || n > uint64(len(frame)-size-4) {
			return jobs, false
		}
		sum, body := binary.LittleEndian.Uint32(frame[size:]), frame[size+4:][:n]
		frame = frame[size+4+int(n):]
		f, ok := decodeStagedJob(body)
		if !ok || crc32.Checksum(body, castagnoliTable()) != sum {
			allDecoded = false
			continue
		}
		jobs = append(jobs, f)
	}
	return jobs, allDecoded
}

func decodeStagedJob(encodedJob []byte) (job StagedJob, ok bool) {
	var numbers [8]int64
	for i := range numbers {
		n, size := binary.Varint(encodedJob)
		if size <= 0 {
			return job, false
		}
		numbers[i], encodedJob = n, encodedJob[size:]
	}
	var texts [7]string
	for i := range texts {
		n, size := binary.Uvarint(encodedJob)
		if size <= 0 || n > uint64(len(encodedJob)-size) {
			return job, false
		}
		texts[i], encodedJob = string(encodedJob[size:size+int(n)]), encodedJob[size+int(n):]
	}
	var dependencies []queue.Dependency
	if texts[6] != "" && json.Unmarshal([]byte(texts[6]), &dependencies) != nil {
		return job, false
	}
	return StagedJob{numbers[0], queue.Job{
		Queue: texts[4], Demands: DecodeDemands([]byte(texts[5])), DependsOn: dependencies,
		OnDependencyFailure: queue.OnDependencyFailure(numbers[6]), Priority: numbers[1], MaxAttempts: int(numbers[2]),
		RunAt: queue.UnixMillis(numbers[3]),
		Delay: time.Duration(numbers[4]), ExpiresAt: queue.UnixMillis(numbers[5]), HookEvents: queue.HookEvents(numbers[7]),
	}, texts[0], EncodedTexts{texts[1], texts[2], texts[3]}}, len(encodedJob) == 0
}
