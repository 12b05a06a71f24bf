package handlers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// The output of a job is read only for users with the right to see it. In this test the output is damaged, so
// a reply reports damage if the service has read the output.
func TestShowReadsOutputOnlyForPermittedUsers(t *testing.T) {
	const owner = 61300
	s := newSQLiteTestAPI(t)
	if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: owner,
		Drafts: []queue.Job{{ID: "a", UID: owner, MaxAttempts: 1,
			ExecutionSettings: queue.ExecutionSettings{Command: "true"}}}}); err != nil {
		t.Fatal(err)
	}
	turned, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := turned.ClaimedJobs[0].Lease()
	if _, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{{
		Lease: l, Attempt: queue.Attempt{Fence: l.Fence, OutputFileRef: "1-1", OutputBytes: 17},
		Decision: queue.AttemptDecision{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true},
	}}}); err != nil {
		t.Fatal(err)
	}
	path := runner.OutputPath(s.RunnerLocation.RunnersDir, "1-1")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("not an output file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid   int
		right control.Right
		reads bool
	}{{61301, control.RightRead, false}, {61301, control.RightSubmit, false}, {61301, "", false}, {61301,
		control.RightOperate, true},
		{owner, control.RightSubmit, true}} {
		d, err := s.ShowJob(control.WithPeer(t.Context(), *newPeer(c.uid, c.right)), control.JobShowParams{ID: "a"})
		if err != nil || strings.Contains(d.StdoutTail, "are damaged]") != c.reads {
			t.Errorf("shown to %d with the right %q: %v; is the output read: want %t", c.uid, c.right, err, c.reads)
		}
		if !c.reads && (d.Command != "" || len(d.History) != 1) {
			t.Errorf("shown to %d with the right %q: %+v", c.uid, c.right, d)
		}
	}
}

// If a job ends while it is being shown, a reply with the new state also contains the output of the ended
// attempt.
func TestShownOutputMatchesShownState(t *testing.T) {
	s := newSQLiteTestAPI(t)
	const n = 300
	s.enqueueJobs(t, draftsWithPrefix("j", n)...)
	jobs := s.claimJobs(t, n)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) { write(output.Chunk{Data: []byte("end")}) })
	size := int64(len(s.readOutputFile(t, "1-1")))
	for i := range jobs {
		ended := make(chan struct{})
		go func() { // this goroutine ends when the end of the job is stored
			defer close(ended)
			s.endJobs(t, jobs[i:i+1], queue.Completed, queue.Attempt{OutputFileRef: "1-1", OutputBytes: size})
		}()
		for {
			d, err := s.ShowJob(contextAsPeer(t, ownerUID, control.RightSubmit),
				control.JobShowParams{ID: control.JobID(jobs[i].ID)})
			if err != nil {
				t.Fatal(err)
			}
			if d.State != "completed" {
				continue
			}
			if d.StdoutTail != "end" {
				t.Errorf("%s is completed, with output %q", d.ID, d.StdoutTail)
			}
			break
		}
		<-ended
	}
}

// The output that is shown with a job begins with a whole character. The method "logs" sends output that is valid UTF-8
// as text (not as base64), even if the output is long.
func TestShownOutputStartsAtWholeCharacter(t *testing.T) {
	text := []byte(strings.Repeat("é", maxOutputPieceBytes) + "z")
	s := newSQLiteTestAPI(t)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		at := int64(0)
		// A slow pipe causes chunks of this size, which cut characters in two.
		for part := range slices.Chunk(text, 4095) {
			at += 1000
			write(output.Chunk{ReadTimeMillis: at, Data: part})
		}
	})
	s.enqueueJobs(t, draftWithID("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputFileRef: "1-1"})
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	d, err := s.ShowJob(ctx, control.JobShowParams{ID: "a"})
	if err != nil || strings.Contains(d.StdoutTail, "\ufffd") || len(d.StdoutTail) < maxShownTailBytes-1 {
		t.Errorf("shown with %d bytes %.10q, %v", len(d.StdoutTail), d.StdoutTail, err)
	}
	var got []byte
	_, err = s.StreamOutput(ctx, control.JobOutputParams{ID: "a"}, func(p control.OutputPiece) error {
		if p.NonUTF8Bytes != nil {
			t.Errorf("%d bytes of text come as base64", len(p.NonUTF8Bytes))
		}
		got = append(got, p.Bytes()...)
		return nil
	})
	if err != nil || string(got) != string(text) {
		t.Errorf("got %d bytes of %d, %v", len(got), len(text), err)
	}
}

// Where bytes are missing at the end of an output, the shown text contains a line that says why.
func TestShownTailMarksMissingOutput(t *testing.T) {
	var got outputTails
	for _, c := range []output.Chunk{
		{Data: []byte("first")}, {DroppedBytes: 70}, {Data: []byte("last\n")}, {Stream: output.Stderr,
			Data: []byte("oops\n")},
		{Stream: output.Stderr, DamagedBytes: 5}, {Stream: output.Stderr, Data: []byte("end")}, {DamagedBytes: 2,
			StreamUnknown: true},
	} {
		if err := got.addChunk(c); err != nil {
			t.Fatal(err)
		}
	}
	const both = "[2 bytes of output are damaged]\n"
	for s, want := range map[output.Stream]string{
		output.Stdout: "first\n[70 bytes of stdout were not kept]\nlast\n" + both,
		output.Stderr: "oops\n[5 bytes of stderr are damaged]\nend\n" + both,
	} {
		if string(got.tailByStream[s]) != want {
			t.Errorf("stream %d: got %q, want %q", s, got.tailByStream[s], want)
		}
	}
}
