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
	s := newStoreRig(t)
	if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: owner,
		Drafts: []queue.Job{{ID: "a", UID: owner, MaxAttempts: 1,
			Execution: queue.Execution{Command: "true"}}}}); err != nil {
		t.Fatal(err)
	}
	turned, err := s.Store.Exchange(t.Context(), store.Report{WantedJobs: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := turned.Jobs[0].Lease()
	if _, err := s.Store.Exchange(t.Context(), store.Report{Settlements: []store.Settlement{{
		Lease: l, Attempt: queue.Attempt{Fence: l.Fence, OutputRef: "1-1", OutputBytes: 17},
		Decision: queue.Decision{State: queue.Completed, UsesAttempt: true, RecordsAttempt: true},
	}}}); err != nil {
		t.Fatal(err)
	}
	path := runner.OutputPath(s.RunnerLocation.Dir, "1-1")
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
		d, err := s.Show(control.WithPeer(t.Context(), *peer(c.uid, c.right)), control.Show{ID: "a"})
		if err != nil || strings.Contains(d.Output, "are damaged]") != c.reads {
			t.Errorf("shown to %d with the right %q: %v; is the output read: want %t", c.uid, c.right, err, c.reads)
		}
		if !c.reads && (d.Command != "" || len(d.History) != 1) {
			t.Errorf("shown to %d with the right %q: %+v", c.uid, c.right, d)
		}
	}
}

// If a job ends while it is being shown, a reply with the new state also contains the output of the ended
// attempt.
func TestShownOutputIsOfTheState(t *testing.T) {
	s := newStoreRig(t)
	const n = 300
	s.enqueueJobs(t, namedJobs("j", n)...)
	jobs := s.claimJobs(t, n)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) { write(output.Chunk{Data: []byte("end")}) })
	size := int64(len(s.readOutputFile(t, "1-1")))
	for i := range jobs {
		ended := make(chan struct{})
		go func() { // this goroutine ends when the end of the job is stored
			defer close(ended)
			s.endJobs(t, jobs[i:i+1], queue.Completed, queue.Attempt{OutputRef: "1-1", OutputBytes: size})
		}()
		for {
			d, err := s.Show(asPeer(t, ownerUID, control.RightSubmit), control.Show{ID: control.JobID(jobs[i].ID)})
			if err != nil {
				t.Fatal(err)
			}
			if d.State != "completed" {
				continue
			}
			if d.Output != "end" {
				t.Errorf("%s is completed, with output %q", d.ID, d.Output)
			}
			break
		}
		<-ended
	}
}

// The output that is shown with a job begins with a whole character. The method "logs" sends valid text as
// text (not as base64), even if the output is long.
func TestCutTextEndsBetweenCharacters(t *testing.T) {
	text := []byte(strings.Repeat("é", maxPieceBytes) + "z")
	s := newStoreRig(t)
	s.writeOutputFile(t, "1-1", func(write func(output.Chunk)) {
		at := int64(0)
		// A slow pipe causes chunks of this size, which cut characters in two.
		for part := range slices.Chunk(text, 4095) {
			at += 1000
			write(output.Chunk{Time: at, Data: part})
		}
	})
	s.enqueueJobs(t, jobNamed("a"))
	s.endJobs(t, s.claimJobs(t, 1), queue.Completed, queue.Attempt{OutputRef: "1-1"})
	ctx := asPeer(t, ownerUID, control.RightSubmit)
	d, err := s.Show(ctx, control.Show{ID: "a"})
	if err != nil || strings.Contains(d.Output, "\ufffd") || len(d.Output) < maxShowTailBytes-1 {
		t.Errorf("shown with %d bytes %.10q, %v", len(d.Output), d.Output, err)
	}
	var got []byte
	_, err = s.Logs(ctx, control.Logs{ID: "a"}, func(p control.OutputPiece) error {
		if p.Base64 != nil {
			t.Errorf("%d bytes of text come as base64", len(p.Base64))
		}
		got = append(got, p.Bytes()...)
		return nil
	})
	if err != nil || string(got) != string(text) {
		t.Errorf("got %d bytes of %d, %v", len(got), len(text), err)
	}
}

// Where bytes are missing at the end of an output, the shown text contains a line that says why.
func TestTailMarksMissingOutput(t *testing.T) {
	var got outputTails
	for _, c := range []output.Chunk{
		{Data: []byte("first")}, {DroppedBytes: 70}, {Data: []byte("last\n")}, {Stream: output.Stderr,
			Data: []byte("oops\n")},
		{Stream: output.Stderr, DamagedBytes: 5}, {Stream: output.Stderr, Data: []byte("end")}, {DamagedBytes: 2,
			StreamUnknown: true},
	} {
		if err := got.add(c); err != nil {
			t.Fatal(err)
		}
	}
	const both = "[2 bytes of output are damaged]\n"
	for s, want := range map[output.Stream]string{
		output.Stdout: "first\n[70 bytes of stdout were not kept]\nlast\n" + both,
		output.Stderr: "oops\n[5 bytes of stderr are damaged]\nend\n" + both,
	} {
		if string(got.streamEnds[s]) != want {
			t.Errorf("stream %d: got %q, want %q", s, got.streamEnds[s], want)
		}
	}
}
