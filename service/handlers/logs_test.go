package handlers

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
)

// readLogs returns the output that the method "logs" sends for job a.
func readLogs(t *testing.T, s *testAPI, p control.JobOutputParams) string {
	t.Helper()
	var got []byte
	p.ID = "a"
	_, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit), p, func(piece control.OutputPiece) error {
		if b := piece.Bytes(); len(b) > maxOutputPieceBytes || piece.Text != "" && !utf8.ValidString(piece.Text) {
			t.Errorf("a piece of %d bytes", len(b))
		}
		got = piece.AppendTo(got)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// lastLinesOf returns the last n lines of the chunks that the callback accepts. The implementation is simple, so that
// the test can compare its result with the lines that the service sends.
func lastLinesOf(chunks []output.Chunk, lineCount int, acceptsChunk func(output.Chunk) bool) string {
	var text []byte
	for _, c := range chunks {
		if acceptsChunk(c) {
			p := control.OutputPiece{Stream: "stdout", Text: string(c.Data), DroppedBytes: c.DroppedBytes}
			if c.Stream == output.Stderr {
				p.Stream = "stderr"
			}
			text = p.AppendTo(text)
		}
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return string(bytes.Join(lines[max(0, len(lines)-lineCount):], nil))
}

// The method "logs" sends exactly the last n lines of an output. It makes no difference to which streams the
// lines belong, and how the output was split into chunks. A gap in the output counts as one line, because it is shown
// as one line.
func TestStreamOutputSendsLastLines(t *testing.T) {
	words := []string{"a", "bc\n", "\n", "d\ne\n", "é\n", strings.Repeat("long ", 9000), strings.Repeat("x\n", 500),
		"\xff\n"}
	for seed := range uint64(40) {
		s := newSQLiteTestAPI(t)
		r := rand.New(rand.NewPCG(seed, 1))
		var chunks []output.Chunk
		at := int64(100)
		for range r.IntN(30) {
			at += r.Int64N(3)
			c := output.Chunk{Stream: output.Stream(r.IntN(2)), ReadTimeMillis: at}
			if seed%2 == 1 && r.IntN(8) == 0 {
				c.DroppedBytes = 1 + r.Int64N(9)
			} else {
				c.Data = []byte(words[r.IntN(len(words))])
			}
			chunks = append(chunks, c)
		}
		out := queue.Attempt{}
		if out.Output, _ = output.AppendEncodedChunks(nil, 0, chunks); len(out.Output) > 4096 {
			out.Output, out.OutputFileRef = nil, "1-1"
			s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
				for _, c := range chunks {
					write(c)
				}
			})
			chunks = chunks[:0] // read the chunks from the file, because writing may have joined some
			raw := s.readOutputFile(t, "1-1")
			if err := output.DecodeFile(bytes.NewReader(raw), int64(len(raw)), func(c output.Chunk) error {
				chunks = append(chunks, c)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		s.enqueueJobs(t, draftWithID("a"))
		s.endJobs(t, s.claimJobs(t, 1), queue.Completed, out)
		for _, n := range []int{0, 1, 2, 3, 10, 1000, control.MaxOutputLines} {
			for name, c := range map[string]struct {
				p      control.JobOutputParams
				wanted func(output.Chunk) bool
			}{
				"all": {control.JobOutputParams{}, func(output.Chunk) bool { return true }},
				"stdout": {control.JobOutputParams{StdoutOnly: true},
					func(c output.Chunk) bool { return c.Stream == output.Stdout }},
				"stderr": {control.JobOutputParams{StderrOnly: true},
					func(c output.Chunk) bool { return c.Stream == output.Stderr }},
				"since": {control.JobOutputParams{PrintedSince: 110},
					func(c output.Chunk) bool { return c.ReadTimeMillis >= 110 }},
			} {
				p := c.p
				p.LastLineCount = &n
				if got, want := readLogs(t, s, p), lastLinesOf(chunks, n, c.wanted); got != want {
					t.Fatalf("seed %d, %d lines of %s: got %d bytes %.100q, want %d %.100q", seed, n, name, len(got), got, len(want),
						want)
				}
			}
		}
	}
}

// heapBytesInUse returns the number of bytes on the heap that the last garbage collection found in use.
func heapBytesInUse() uint64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// peakHeapGrowthBytes returns by how many bytes the live heap grows while f runs.
func peakHeapGrowthBytes(f func()) uint64 {
	before := heapBytesInUse()
	peak := before
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // this goroutine ends when f has returned
		defer close(stopped)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			peak = max(peak, heapBytesInUse())
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return peak - before
}

// Finding the last lines or the end of a long output takes little memory, because the search keeps only the
// positions of the lines.
func TestReadingLongOutputTakesLittleMemory(t *testing.T) {
	const size = 48 << 20
	s := newSQLiteTestAPI(t)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		line := strings.Repeat("x", 63) + "\n"
		for n := 0; n < size; n += 64 << 10 {
			write(output.Chunk{Stream: output.Stream(n >> 16 & 1), ReadTimeMillis: 1, Data: []byte(strings.Repeat(line, 1<<10))})
		}
	})
	s.enqueueJobs(t, draftWithID("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputFileRef: "1-1"})
	const most = size / 2
	for _, n := range []int{1, 1000, control.MaxOutputLines} {
		lines := 0
		grown := peakHeapGrowthBytes(func() {
			p := control.JobOutputParams{ID: "a", LastLineCount: &n}
			if _, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit), p,
				func(piece control.OutputPiece) error {
					lines += strings.Count(piece.Text, "\n")
					return nil
				}); err != nil {
				t.Error(err)
			}
		})
		if lines != n || grown > most {
			t.Errorf("%d lines were sent, and the heap grew by %d bytes; want %d lines, and at most %d", lines, grown, n, most)
		}
	}
	var d control.JobDetail
	grown := peakHeapGrowthBytes(func() {
		var err error
		if d, err = s.ShowJob(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobShowParams{ID: "a"}); err != nil {
			t.Error(err)
		}
	})
	if len(d.StdoutTail) != maxShownTailBytes || len(d.StderrTail) != maxShownTailBytes || grown > most {
		t.Errorf("shown with %d and %d bytes of output; the heap grew by %d bytes", len(d.StdoutTail), len(d.StderrTail),
			grown)
	}
}

// If output is split into pieces, no character is cut in two. Bytes that are not valid UTF-8 are not lost.
func TestOutputPiecesEndBetweenCharacters(t *testing.T) {
	s := newSQLiteTestAPI(t)
	for _, c := range []struct {
		unit   string
		base64 bool
	}{{"x", false}, {"é", false}, {"日", false}, {"🙂", false}, {"\x01", false}, {"\xff", true}} {
		text := "a" + strings.Repeat(c.unit, 3*maxOutputPieceBytes/len(c.unit))
		var got []byte
		f := &outputSender{API: s.API, params: control.JobOutputParams{}, sendPiece: func(p control.OutputPiece) error {
			if (p.NonUTF8Bytes != nil) != c.base64 || len(p.Bytes()) > maxOutputPieceBytes {
				t.Errorf("%q: a piece of %d bytes, base64: %t", c.unit, len(p.Bytes()), p.NonUTF8Bytes != nil)
			}
			got = append(got, p.Bytes()...)
			return nil
		}}
		if err := f.sendChunk(output.Chunk{Data: []byte(text)}); err != nil || string(got) != text {
			t.Errorf("%q: %d bytes were sent as %d, %v", c.unit, len(text), len(got), err)
		}
	}
	if _, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.JobOutputParams{ID: "a", LastLineCount: new(-1)},
		nil); err == nil {
		t.Error(fmt.Errorf("a negative number of lines is taken"))
	}
}

// If only the end of an output is requested, the rest is not read. In this test the rest is damaged, so the reply
// reports damage if the service has read it.
func TestOutputTailReadSkipsEarlierOutput(t *testing.T) {
	s := newSQLiteTestAPI(t)
	line := strings.Repeat("x", 63) + "\n"
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		write(output.Chunk{Stream: output.Stderr, ReadTimeMillis: 1, Data: []byte("early\n")})
		for range 100 {
			write(output.Chunk{ReadTimeMillis: 1, Data: []byte(strings.Repeat(line, 1<<10))})
		}
		write(output.Chunk{Stream: output.Stderr, ReadTimeMillis: 2, Data: []byte("late\n")})
	})
	raw := s.readOutputFile(t, "1-1")
	for i := range raw[1<<20 : len(raw)-1<<20] {
		raw[1<<20+i] = 0xff
	}
	if err := os.WriteFile(runner.OutputPath(s.RunnerLocation.RunnersDir, "1-1"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s.enqueueJobs(t, draftWithID("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputFileRef: "1-1", OutputBytes: int64(len(raw))})
	n := 3
	if got, want := readLogs(t, s, control.JobOutputParams{LastLineCount: &n}), line+line+"late\n"; got != want {
		t.Errorf("logs -n 3: got %q, want %q", got, want)
	}
	d, err := s.ShowJob(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobShowParams{ID: "a"})
	if err != nil || len(d.StdoutTail) != maxShownTailBytes || d.StderrTail != "early\nlate\n" {
		t.Errorf("show: got %d bytes and %q, %v", len(d.StdoutTail), d.StderrTail, err)
	}
	var damage []control.DamagedRange
	if _, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobOutputParams{ID: "a"},
		func(p control.OutputPiece) error {
			if p.Damage != nil {
				damage = append(damage, *p.Damage)
			} else if strings.Contains(p.String(), "\xff") {
				t.Error("damaged bytes are sent as output")
			}
			return nil
		}); err != nil {
		t.Error(err)
	}
	damagedAt := int64(len(raw) - 2<<20)
	if len(damage) != 1 || damage[0].StreamOffset < 1<<20-64<<10 || damage[0].StreamOffset > 1<<20 ||
		damage[0].ByteCount < damagedAt ||
		damage[0].ByteCount > damagedAt+64<<10 {
		t.Errorf("the damage in its middle is %+v, want about %d bytes at 1 MiB", damage, damagedAt)
	}
}

// If an output file was truncated, the reply contains the remaining output and then says that the rest is
// damaged.
func TestTruncatedOutputFileIsReported(t *testing.T) {
	const size = 300_000
	s := newSQLiteTestAPI(t)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		for at := range int64(size / 1000) {
			write(output.Chunk{ReadTimeMillis: at, Data: []byte(strings.Repeat("y", 999) + "\n")})
		}
	})
	raw := s.readOutputFile(t, "1-1")
	s.enqueueJobs(t, draftWithID("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputFileRef: "1-1", OutputBytes: int64(len(raw))})
	for _, kept := range []int{len(raw) - 1, len(raw) / 2, 1, 0} {
		if err := os.Truncate(runner.OutputPath(s.RunnerLocation.RunnersDir, "1-1"), int64(kept)); err != nil {
			t.Fatal(err)
		}
		for name, p := range map[string]control.JobOutputParams{
			"all": {ID: "a"}, "the last lines": {ID: "a", LastLineCount: new(2)},
			"stdout": {ID: "a", StdoutOnly: true}, "stderr": {ID: "a", StderrOnly: true},
			"the last lines of stderr": {ID: "a", StderrOnly: true, LastLineCount: new(2)},
			"a later time":             {ID: "a", PrintedSince: size, StdoutOnly: true},
		} {
			lost, last, stream := int64(0), int64(0), "none"
			if _, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit), p,
				func(piece control.OutputPiece) error {
					if piece.Damage == nil {
						last = 0
					} else {
						last += piece.Damage.ByteCount
						lost += piece.Damage.ByteCount
						stream = piece.Stream
					}
					return nil
				}); err != nil {
				t.Errorf("%d bytes left, %s: %v", kept, name, err)
			}
			want := int64(max(0, len(raw)-kept-1000))
			if p.StderrOnly || p.PrintedSince > 0 {
				// The header of the damaged record is intact. The header says when the data was printed, and that the data belongs
				// to stdout.
				want = max(0, want-32<<10)
			}
			if unknown := stream == ""; unknown != (want > 0) {
				t.Errorf("%d bytes left, %s: the last loss is of stream %q; it cannot be known", kept, name, stream)
			}
			if lost < want || lost > want+64<<10 || last != lost {
				t.Errorf("%d bytes left, %s: %d bytes are lost, %d at the end, want %d or one record more", kept, name, lost, last,
					want)
			}
		}
		if d, err := s.ShowJob(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobShowParams{ID: "a"}); err != nil ||
			kept > 4000 &&
				len(d.StdoutTail) != maxShownTailBytes || (strings.Count(d.StdoutTail+d.StderrTail,
			"bytes of output are damaged]") == 2) != (kept < len(raw)/2+1) {
			t.Errorf("%d bytes left: shown are %d and %q, %v", kept, len(d.StdoutTail), d.StderrTail, err)
		}
	}
}

// If a job's account appends to an output file after the attempt, the added bytes are not read.
func TestBytesAppendedToOutputFileAreIgnored(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		write(output.Chunk{ReadTimeMillis: 1, Data: []byte("all of it")})
	})
	size := int64(len(s.readOutputFile(t, "1-1")))
	s.enqueueJobs(t, draftWithID("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputFileRef: "1-1", OutputBytes: size})
	if err := os.Truncate(runner.OutputPath(s.RunnerLocation.RunnersDir, "1-1"), 1<<40); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	_, err := s.StreamOutput(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobOutputParams{ID: "a"},
		func(p control.OutputPiece) error {
			got.Write(p.Bytes())
			return nil
		})
	if err != nil || got.String() != "all of it" {
		t.Errorf("got %q, %v", got.String(), err)
	}
}
