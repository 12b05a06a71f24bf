package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// eventStep is how many events are read at once.
const eventStep = 500

// Events implements control.API.
func (s *Service) Events(ctx context.Context, p control.Events, each func(control.Event) error) (control.EventsEnd, error) {
	after, _ := s.store.News()
	switch {
	case p.Since != nil && *p.Since < 0:
		return control.EventsEnd{}, queue.Invalid("since", "must not be negative; it is the number of the last event that you have seen")
	case p.Since != nil:
		after = *p.Since
	case !p.Follow:
		after = 0
	}
	if err := checkKinds(p.Event); err != nil {
		return control.EventsEnd{}, err
	}
	for {
		_, changed := s.store.News()
		list, err := s.store.Events(ctx, after, eventStep)
		if err != nil {
			return control.EventsEnd{}, err
		}
		for i := range list {
			e := &list[i]
			after = e.Seq
			if len(p.ID) > 0 && !slices.Contains(p.ID, e.ID) || len(p.Event) > 0 && !slices.Contains(p.Event, string(e.Kind)) {
				continue
			}
			if err := each(s.viewEvent(e)); err != nil {
				return control.EventsEnd{}, err
			}
		}
		switch {
		case len(list) > 0:
			continue
		case !p.Follow:
			return control.EventsEnd{Last: after}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return control.EventsEnd{}, ctx.Err()
		}
	}
}

func checkKinds(asked []string) error {
	var known []string
	for _, k := range queue.EventKinds() {
		known = append(known, string(k))
	}
	for _, k := range asked {
		if !slices.Contains(known, k) {
			return queue.Invalid("event", "%q is no kind of event%s; there are %s", k, queue.Nearest(k, known), strings.Join(known, ", "))
		}
	}
	return nil
}

func (s *Service) viewEvent(e *queue.Event) control.Event {
	v := control.ViewEvent(e)
	if e.Detail.UID != nil {
		v.User = s.userName(*e.Detail.UID)
	}
	return v
}

// drainKey is the stored setting that keeps a drain over restarts. It is no key of
// the configuration.
const drainKey = "drain"

// Drain implements control.API.
func (s *Service) Drain(ctx context.Context, p control.Drain) (control.Draining, error) {
	if p.Off && p.Wait {
		return control.Draining{}, queue.Invalid("wait", "goes with a drain, not with its end")
	}
	value := "on"
	if p.Off {
		value = ""
	}
	if err := s.store.SetSetting(ctx, store.Setting{Key: drainKey, Value: value, UID: control.PeerFrom(ctx).UID}); err != nil {
		return control.Draining{}, err
	}
	s.pool.Drain(!p.Off)
	if p.Wait {
		if err := s.pool.Quiet(ctx); err != nil {
			return control.Draining{}, err
		}
	}
	return control.Draining{Draining: s.pool.Draining(), Running: s.pool.Busy()}, nil
}

// Reload implements control.API.
func (s *Service) Reload(ctx context.Context, _ control.Nothing) (control.Reloaded, error) {
	if err := s.reload(ctx); err != nil {
		return control.Reloaded{}, err
	}
	return control.Reloaded{Hidden: append([]string{}, s.config.Load().Hides(config.FromFile)...)}, nil
}

// problems lists what keeps the queue from its work, and whether it fails
// altogether. It asks the runners.
func (s *Service) problems() (list []string, failing bool) {
	if err := s.store.Room(); err != nil {
		list, failing = append(list, err.Error()), true
	}
	for _, w := range s.pool.List() {
		if w.Stale {
			list = append(list, fmt.Sprintf("worker %s has not been heard of for worker_timeout; look at its runner with ps, job %s", w.ID, w.Job))
		}
	}
	if pause := s.pool.Paused(); pause != "" {
		list = append(list, pause)
	}
	if s.pool.Draining() {
		list = append(list, "it drains, so no job is started; end that with: queuectl drain --off")
	}
	return list, failing
}

func health(problems []string, failing bool) string {
	switch {
	case failing:
		return "failing: " + strings.Join(problems, "; ")
	case len(problems) > 0:
		return "degraded: " + strings.Join(problems, "; ")
	}
	return "ok"
}
