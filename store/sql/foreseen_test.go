package sql

import (
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// talkTo is a connection of nobody's to a node's server.
func talkTo(t *testing.T, s *Server) *serverConn {
	t.Helper()
	c, err := connectServer(t.Context(), s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close() })
	return c
}

// What attempts leave is written while another node has the turn, so that the turn is not needed for it. Who changes such a row
// meanwhile, as a takeover would, stops nobody for longer than the server takes to see that two wait for each other.
func TestEndsAreWrittenBeforeTheTurn(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := node(t, url, "a"), node(t, url, "b")
	hand(t, a, draft(), draft())
	jobs := claim(t, a, 2)
	held, looks := talkTo(t, b), talkTo(t, b)
	for i, what := range []string{`SELECT one FROM meta`, `UPDATE jobs SET updated_at = updated_at WHERE seq = 2`} {
		if err := errors.Join(held.exec(`BEGIN`), held.exec(`SELECT one FROM meta FOR UPDATE`)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := a.Exchange(t.Context(), store.Report{Ended: []store.Settlement{over(a, &jobs[i])}})
			ended <- err
		}()
		free := int64(1)
		for begin := time.Now(); free != 0 && time.Since(begin) < 10*time.Second; {
			var err error
			if free, err = looks.number(`SELECT count(*) FROM (SELECT 1 FROM jobs WHERE seq = ? FOR UPDATE SKIP LOCKED) AS free`, jobs[i].Seq); err != nil {
				t.Fatal(err)
			}
		}
		if free != 0 {
			t.Error("the row of a job that has ended is not written while another node has the turn")
		}
		held.exec(what) // one of the two is refused
		held.exec(`ROLLBACK`)
		if err := <-ended; err != nil {
			t.Errorf("after %s: %v", what, err)
		}
		if j, err := b.Get(t.Context(), jobs[i].ID); err != nil || j.State != queue.Completed {
			t.Errorf("after %s: %v, %v", what, j.State, err)
		}
	}
}

// What was foreseen and comes about otherwise is written as it came about; what does not come about leaves nothing.
func TestForeseenIsNotBelieved(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a := node(t, url, "a")
	node(t, url, "b")
	foreseen := map[string]func(*store.Settlement){
		"an end without output": func(e *store.Settlement) { e.Decision.Counts = true },
		"an end with output":    func(e *store.Settlement) { e.Attempt.Output = []byte("foreseen") },
	}
	became := map[string]func(*store.Settlement){
		"nothing":         nil,
		"another output":  func(e *store.Settlement) { e.Attempt.Output = []byte("became") },
		"another outcome": func(e *store.Settlement) { e.Decision.State, e.Attempt.ExitCode = queue.Dead, 3 },
		"no output":       func(e *store.Settlement) { e.Decision.Counts = true },
	}
	for was, foresee := range foreseen {
		for is, become := range became {
			hand(t, a, draft())
			j := claim(t, a, 1)[0]
			expected, got := over(a, &j), over(a, &j)
			foresee(&expected)
			if become != nil {
				become(&got)
			}
			tries := 0
			err := a.doOp(t.Context(), &op{class: urgent, ended: []store.Settlement{expected}, run: func(t *tx) (err error) {
				tries++
				if become != nil {
					_, err = t.rules.Exchange(&store.Report{Ended: []store.Settlement{got}})
				}
				return err
			}})
			if err != nil || tries > 2 {
				t.Fatalf("foreseen was %s, it became %s: %v after %d tries", was, is, err, tries)
			}
			found, err := a.Get(t.Context(), j.ID)
			list, err2 := a.History(t.Context(), j.Seq, 0, 9)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if become == nil {
				if found.State != queue.Pending || found.EndedAt != 0 || len(list) != 0 {
					t.Errorf("foreseen was %s, it became nothing: %v with %d attempts", was, found.State, len(list))
				}
				if _, err := a.Exchange(t.Context(), store.Report{Ended: []store.Settlement{got}}); err != nil {
					t.Errorf("it cannot end any more: %v", err)
				}
				continue
			}
			last, err := a.Attempt(t.Context(), j.Seq, 0)
			if err != nil || found.State != got.Decision.State || len(list) != 1 || last.ExitCode != got.Attempt.ExitCode || string(last.Output) != string(got.Attempt.Output) {
				t.Errorf("foreseen was %s, it became %s: %v with %d attempts, %d with %q, %v", was, is, found.State, len(list), last.ExitCode, last.Output, err)
			}
		}
	}
}
