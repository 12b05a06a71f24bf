package service

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

const (
	// showTail is how much of the last attempt's output a job is shown with, in bytes of
	// each stream.
	showTail = 4 << 10
	// maxHistory is how many attempts a job is shown with.
	maxHistory = 100
	// showLooks is how often a job is looked at whose state changes while its output is
	// read, so that both are of the same moment.
	showLooks = 4
)

var (
	// errUnrecorded keeps another's environment from being shown before that is recorded.
	errUnrecorded = errors.New("nobody has recorded that it is shown")
	// errMovedOn is about a job whose output was read in another state.
	errMovedOn = errors.New("its state has changed")
)

// Show implements control.API.
func (s *Service) Show(ctx context.Context, p control.Show) (control.JobDetail, error) {
	if p.HistoryBefore < 0 {
		return control.JobDetail{}, queue.Invalid("history_before", "must not be negative; it is the number of an attempt")
	}
	j, err := s.named(ctx, p.ID)
	if err != nil {
		return control.JobDetail{}, err
	}
	peer := control.PeerFrom(ctx)
	sight := s.sees(&peer, &j)
	for looks, recorded := 1, false; ; {
		var tails [2][]byte
		if sight >= control.Inside { // else nothing is read of it
			tails, err = s.tails(ctx, &j)
			if silent := j.State == queue.Processing && errors.Is(err, queue.ErrUnavailable); err != nil && !silent {
				return control.JobDetail{}, err
			}
		}
		d, err := control.Answer(ctx, &s.shares, control.One, func() (control.JobDetail, error) {
			whole, err := s.wholeAgain(ctx, &j, sight)
			if err != nil {
				return control.JobDetail{}, err
			}
			if (whole.State != j.State || whole.Runs != j.Runs) && looks < showLooks {
				j = whole
				return control.JobDetail{}, errMovedOn
			}
			own := s.owns(&peer, &whole)
			sight = min(sight, s.sees(&peer, &whole))
			if sight == control.Whole && !own && len(whole.Env) > 0 && !recorded {
				return control.JobDetail{}, errUnrecorded
			}
			d, err := s.detail(ctx, &whole, p.HistoryBefore)
			d.Output, d.Stderr = text(tails[0]), text(tails[1])
			d.Hide(sight)
			return d, err
		})
		switch {
		case errors.Is(err, errMovedOn):
			looks++
		case errors.Is(err, errUnrecorded):
			if err := s.audit(ctx, "show", "environment", &j); err != nil {
				s.log.Warn("an environment was not shown, for that could not be recorded", "job", j.ID, "error", err)
				sight = control.Inside
				continue
			}
			s.log.Info("an environment is shown", "job", j.ID, "uid", peer.UID, "pid", peer.PID)
			recorded = true
		default:
			return d, err
		}
	}
}

// wholeAgain reads all of a job that was read before, or what may be seen of it.
func (s *Service) wholeAgain(ctx context.Context, was *queue.Job, sees control.Sight) (j queue.Job, err error) {
	if sees < control.Inside {
		return s.again(ctx, was)
	}
	if j, err = s.store.Whole(ctx, was.ID); err == nil {
		err = sameJob(&j, was)
	}
	return j, err
}

// named reads the job that a request names.
func (s *Service) named(ctx context.Context, id control.Name) (j queue.Job, err error) {
	if id == "" {
		return j, queue.Invalid("id", "is missing; give the id of a job")
	}
	err = s.shares.Do(ctx, control.One, func() (err error) {
		j, err = s.store.Get(ctx, string(id))
		return err
	})
	return j, err
}

// detail is a job with its newest attempts, of those before one unless that is 0.
func (s *Service) detail(ctx context.Context, j *queue.Job, before int) (control.JobDetail, error) {
	d := control.JobDetail{Job: s.view(j), Spec: queue.SpecOf(j).Given(), History: []control.Attempt{}, HistoryTotal: j.Runs}
	history, err := s.store.History(ctx, j.Seq, before, maxHistory)
	if err != nil {
		return d, err
	}
	for i := range history {
		d.History = append(d.History, control.ViewAttempt(&history[i]))
	}
	if j.State != queue.Processing {
		return d, nil
	}
	d.HistoryTotal++
	if before == 0 || before > j.Runs+1 {
		d.History = append(d.History, control.ViewAttempt(&queue.Attempt{
			N: j.Runs + 1, Worker: j.WorkerID, Node: s.node, PID: j.PID, StartedAt: j.StartedAt, ExitCode: -1,
		}))
	}
	return d, nil
}

// text is what was printed, as JSON can hold it.
func text(printed []byte) string { return strings.ToValidUTF8(string(printed), "\uFFFD") }

// tails are the ends of the streams of a job's last attempt.
func (s *Service) tails(ctx context.Context, j *queue.Job) (tails [2][]byte, err error) {
	n := j.Runs
	if j.State == queue.Processing {
		n++
	}
	if n == 0 {
		return tails, nil
	}
	err = s.readTail(ctx, j, n, showTail, func(c output.Chunk) error {
		tail := append(tails[c.Stream], c.Data...)
		if more := len(tail) - showTail; more > 0 {
			tail = bytes.Clone(tail[more:]) // the rest of a large chunk goes
		}
		tails[c.Stream] = tail
		return nil
	})
	return tails, err
}
