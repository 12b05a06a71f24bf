package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// campaignClient sends random requests of every kind.
type campaignClient struct {
	c    *campaign
	name string
	dice *rand.Rand
	ask  asker
	made int // number of tags made
}

// campaignVerbs lists the operations of a client with their relative frequencies.
var campaignVerbs = []struct {
	weight int
	does   func(*campaignClient)
}{
	{30, (*campaignClient).enqueue},
	{4, (*campaignClient).enqueueByCLI},
	{5, (*campaignClient).batch},
	{7, func(a *campaignClient) { a.onJobs("cancel") }},
	{5, func(a *campaignClient) { a.onJobs("retry") }},
	{2, func(a *campaignClient) { a.onJobs("dlq.retry") }},
	{5, func(a *campaignClient) { a.onJobs("requeue") }},
	{3, func(a *campaignClient) { a.onJobs("hold") }},
	{3, func(a *campaignClient) { a.onJobs("release") }},
	{3, func(a *campaignClient) { a.onJobs("edit") }},
	{2, func(a *campaignClient) { a.onJobs("kill") }},
	{4, func(a *campaignClient) { a.onJobs("rm") }},
	{3, func(a *campaignClient) { a.onJobs("rm --force") }},
	{2, (*campaignClient).onGroup},
	{4, (*campaignClient).wait},
	{6, (*campaignClient).logs},
	{8, (*campaignClient).show},
	{3, func(a *campaignClient) { a.read("list", fields{"limit": 1 + a.dice.IntN(300)}) }},
	{3, func(a *campaignClient) { a.read("status", fields{}) }},
	{2, func(a *campaignClient) { a.read("worker.list", fields{}) }},
	{1, func(a *campaignClient) { a.read("config.list", fields{}) }},
	{1, func(a *campaignClient) { a.read("dlq.list", fields{}) }},
	{2, (*campaignClient).setting},
	{2, (*campaignClient).workers},
	{1, (*campaignClient).drain},
	{1, func(a *campaignClient) { a.call("reload", fields{}, 0) }},
	{1, (*campaignClient).doctor},
	{1, (*campaignClient).backup},
	{5, (*campaignClient).byCLI},
}

// run performs random operations until ctx ends.
func (a *campaignClient) run(ctx context.Context) {
	all := 0
	for _, v := range campaignVerbs {
		all += v.weight
	}
	for ctx.Err() == nil && !a.c.over.Load() {
		at := a.dice.IntN(all)
		for _, v := range campaignVerbs {
			if at -= v.weight; at < 0 {
				v.does(a)
				break
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(a.dice.IntN(120)) * time.Millisecond): // the client's request rate
		}
	}
	if a.ask.conn != nil {
		a.ask.conn.Close()
	}
}

// expected lists the error codes that injected faults or concurrent clients explain.
var expected = []string{"unavailable", "no_space", "outcome_unknown", "not_found", "wrong_state", "full"}

// call sends one request and records the time to its reply. wait is how long the request itself
// may wait. sent is false if the service was unreachable, answered is false if the connection
// broke before a reply.
func (a *campaignClient) call(method string, params any, wait time.Duration) (got wireMessage, sent, answered bool) {
	return a.stream(method, params, wait, func(json.RawMessage) {})
}

func (a *campaignClient) stream(method string, params any, wait time.Duration, tell func(json.RawMessage)) (got wireMessage, sent, answered bool) {
	began := time.Now()
	a.ask.within = wait + answerBound + 5*time.Second
	got, err := a.ask.ask(method, params, tell)
	took := time.Since(began)
	if isDial(err) {
		a.c.count("unreachable " + method)
		return got, false, false
	}
	a.c.answered(method, took, wait)
	switch {
	case err != nil:
		a.c.count("cut " + method)
		return got, true, false
	case got.Error != nil:
		a.c.count("refused " + got.Error.Data.Code)
		if !slices.Contains(expected, got.Error.Data.Code) {
			a.c.violation("answer", "%s %s: %+v", method, brief(params), *got.Error)
		}
	default:
		a.c.count("ops " + method)
	}
	return got, true, true
}

// answered records how long a reply took.
func (c *campaign) answered(method string, took, wait time.Duration) {
	c.mu.Lock()
	c.took = append(c.took, max(0, took-wait))
	c.slowest[method] = max(c.slowest[method], took-wait)
	c.mu.Unlock()
	if took > wait+answerBound {
		c.violation("slow", "%s took %v", method, took.Round(time.Millisecond))
	}
}

func brief(params any) string {
	raw, _ := json.Marshal(params)
	return string(raw[:min(len(raw), 600)])
}

// newJob returns a random job with a unique tag.
func (a *campaignClient) newJob() *trackedJob {
	a.made++
	e := &trackedJob{campaignJob: randomJob(a.dice, fmt.Sprintf("%s-%d", a.name, a.made))}
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.c.jobs[e.tag] = e
	return e
}

// acknowledged records that jobs are stored.
func (c *campaign) acknowledged(list []*trackedJob, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range list {
		e.id = ids[i]
		c.recent = append(c.recent, e)
		c.counts["jobs acknowledged"]++
	}
	if len(c.recent) > 200 {
		c.recent = c.recent[len(c.recent)-200:]
	}
}

// crowded reports whether enough jobs are waiting.
func (c *campaign) crowded() bool {
	var st struct{ Jobs map[string]int }
	return c.get("status", fields{}, &st) == nil && st.Jobs["pending"]+st.Jobs["failed"] > 60
}

// repeats is how often a client resends a request with a key after losing the reply.
const repeats = 40

// insist sends a request with a key until it gets a reply. A refusal counts as a reply only if no
// earlier copy of the request can have been carried out.
func (a *campaignClient) insist(method string, params fields) (got wireMessage, ok bool) {
	lost := false
	for range repeats {
		got, sent, answered := a.call(method, params, 0)
		switch {
		case answered && got.Error == nil:
			return got, true
		case answered && got.Error.Data.Code == "outcome_unknown", sent && !answered:
			lost = true
			a.c.count("repeated " + method)
		case answered && !lost && got.Error.Data.Code != "unavailable":
			return got, false
		case a.c.over.Load() && !lost:
			return got, false
		}
		// No service may be running at the moment.
		time.Sleep(time.Duration(20+a.dice.IntN(300)) * time.Millisecond)
	}
	return got, false
}

func (a *campaignClient) enqueue() {
	if a.c.crowded() {
		return
	}
	e := a.newJob()
	params := a.c.params(&e.campaignJob)
	params["key"] = "key-" + e.tag
	got, ok := a.insist("enqueue", params)
	if !ok {
		return
	}
	var ack struct {
		ID        string
		Duplicate bool
	}
	if err := json.Unmarshal(got.Result, &ack); err != nil || ack.ID == "" {
		a.c.violation("answer", "enqueue: %s, %v", got.Result, err)
		return
	}
	if ack.Duplicate {
		a.c.count("jobs known")
	}
	a.c.acknowledged([]*trackedJob{e}, []string{ack.ID})
}

func (a *campaignClient) enqueueByCLI() {
	if a.c.crowded() {
		return
	}
	e := a.newJob()
	raw, err := json.Marshal(a.c.params(&e.campaignJob))
	if err != nil {
		a.c.violation("test", "%v", err)
		return
	}
	if r := a.cli("enqueue", "-q", string(raw)); r.code == 0 {
		a.c.acknowledged([]*trackedJob{e}, []string{strings.TrimSpace(r.out)})
	}
}

// batch sends a batch in one request or in several. Then it commits, aborts or abandons the batch.
func (a *campaignClient) batch() {
	if a.c.crowded() {
		return
	}
	name := fmt.Sprintf("b-%s-%d", a.name, a.made)
	var all []*trackedJob
	frame := func() (jobs []fields) {
		for range 1 + a.dice.IntN(8) {
			e := a.newJob()
			all = append(all, e)
			jobs = append(jobs, a.c.params(&e.campaignJob))
		}
		return jobs
	}
	forget := func() {
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		for _, e := range all {
			e.never = true
		}
	}
	var ids []string
	for range a.dice.IntN(3) {
		got, _, answered := a.call("enqueue.batch", fields{"batch": name, "jobs": frame()}, 0)
		if !answered || got.Error != nil { // the frame may have been staged, so abort the batch
			forget()
			a.call("enqueue.batch", fields{"batch": name, "abort": true}, 0)
			return
		}
		ids = append(ids, idsIn(got.Result)...)
	}
	last := frame()
	if p := a.dice.IntN(8); p < 2 {
		forget()
		if p == 0 {
			a.call("enqueue.batch", fields{"batch": name, "abort": true}, 0)
		}
		return
	}
	tags := make([]string, len(all))
	for i, e := range all {
		tags[i] = e.tag
	}
	a.c.mu.Lock()
	a.c.batches[name] = tags
	a.c.mu.Unlock()
	got, ok := a.insist("enqueue.batch", fields{"batch": name, "jobs": last, "commit": true, "key": "key-" + name})
	if !ok {
		return
	}
	if ids = append(ids, idsIn(got.Result)...); len(ids) != len(all) {
		a.c.violation("answer", "a batch of %d jobs got %d ids: %s", len(all), len(ids), got.Result)
		return
	}
	a.c.acknowledged(all, ids)
}

func idsIn(raw json.RawMessage) []string {
	var got struct{ IDs []string }
	json.Unmarshal(raw, &got) // empty if the result is malformed
	return got.IDs
}

// pick returns some of the most recent jobs, usually one.
func (a *campaignClient) pick() (list []*trackedJob) {
	n := 1
	if a.dice.IntN(4) == 0 {
		n += a.dice.IntN(4)
	}
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	for range n {
		if len(a.c.recent) == 0 {
			return list
		}
		e := a.c.recent[len(a.c.recent)-1-a.dice.IntN(min(len(a.c.recent), 60))]
		if !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	return list
}

// mark records a request before the client sends it.
func (k *requests) mark(verb string) {
	switch verb {
	case "rm":
		k.remove = true
	case "rm --force":
		k.remove, k.cancel = true, true
	case "cancel":
		k.cancel = true
	case "requeue":
		k.requeue = true
	case "retry", "dlq.retry":
		k.revive = true
	case "release":
		k.release = true
	case "kill":
		k.kill = true
	case "edit":
		k.edit = true
	}
}

// onJobs applies a verb to some jobs.
func (a *campaignClient) onJobs(verb string) {
	list := a.pick()
	if len(list) == 0 {
		return
	}
	ids := make([]string, len(list))
	a.c.mu.Lock()
	for i, e := range list {
		ids[i] = e.id
		e.mark(verb)
	}
	a.c.mu.Unlock()
	params := fields{"ids": ids}
	method := a.dress(verb, params)
	got, _, answered := a.call(method, params, 0)
	if !answered || got.Error != nil {
		return
	}
	up := uptime()
	var verdict struct {
		Done    []string
		Refused []struct{ ID, Code, Message string }
	}
	if err := json.Unmarshal(got.Result, &verdict); err != nil {
		a.c.violation("answer", "%s: %s, %v", method, got.Result, err)
	}
	for _, e := range list {
		if slices.Contains(verdict.Done, e.id) {
			a.c.done(e, method, up)
		}
	}
	for _, r := range verdict.Refused {
		a.c.count("verdicts " + r.Code)
		i := slices.Index(ids, r.ID)
		switch {
		case verb == "edit" && strings.Contains(r.Message, "the job has already used"):
		case i < 0 || !slices.Contains(expected, r.Code):
			a.c.violation("answer", "%s: %+v", method, r)
		case r.Code == "not_found":
			a.c.notFound(list[i], method+": "+r.Message)
		}
	}
}

// done records the consequences of an acknowledged verb for a job.
func (c *campaign) done(e *trackedJob, verb string, up float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch verb {
	case "rm":
		e.removed, e.endedAt = true, up
	case "cancel":
		e.endedAt = up
	case "hold":
		e.heldAt = up
	}
}

// notFound records a violation unless a client has requested the job's removal.
func (c *campaign) notFound(e *trackedJob, said string) {
	c.mu.Lock()
	removing := c.asked(e).remove
	c.mu.Unlock()
	if !removing {
		c.violation("lost", "%s (%s): %s", e.id, e.tag, said)
	}
}

// dress completes the parameters of a verb and returns the method name.
func (a *campaignClient) dress(verb string, params fields) (method string) {
	switch verb {
	case "edit":
		params["set"] = []fields{{"priority": a.dice.IntN(30)}, {"max_retries": a.dice.IntN(5)}, {"timeout": 0.5 + float64(a.dice.IntN(3))}}[a.dice.IntN(3)]
	case "kill":
		params["signal"] = []string{"USR1", "TERM", "KILL"}[a.dice.IntN(3)]
	case "rm --force":
		params["force"] = true
		return "rm"
	}
	return verb
}

// asked returns all requests that concern a job, through its id or its group. The caller holds mu.
func (c *campaign) asked(e *trackedJob) requests {
	k := e.requests
	if g := c.groups[e.group]; g != nil {
		k.remove, k.revive, k.release = k.remove || g.remove, k.revive || g.revive, k.release || g.release
		k.kill, k.edit = k.kill || g.kill, k.edit || g.edit
		k.cancel, k.requeue = k.cancel || g.cancel, k.requeue || g.requeue
	}
	return k
}

// onGroup applies a verb to all jobs of a group.
func (a *campaignClient) onGroup() {
	verb := []string{"cancel", "retry", "hold", "release", "rm", "requeue", "edit"}[a.dice.IntN(7)]
	group := fmt.Sprint("g", a.dice.IntN(12))
	a.c.mu.Lock()
	if a.c.groups[group] == nil {
		a.c.groups[group] = &requests{}
	}
	a.c.groups[group].mark(verb)
	a.c.mu.Unlock()
	params := fields{"label": map[string]string{"group": group}}
	method := a.dress(verb, params)
	if a.dice.IntN(4) == 0 {
		params["dry_run"] = true
	}
	a.call(method, params, 0)
}

// cli runs the program. It allows answerBound plus 10 s.
func (a *campaignClient) cli(args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.c.bin, append([]string{"--dir", a.c.dir}, args...)...)
	cmd.Env = append(environment(a.c.home), "QUEUECTL_NO_START=1")
	cmd.Dir = a.c.home
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	a.c.count("cli " + args[0])
	a.c.answered("cli "+args[0], time.Since(began), 0)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.c.violation("test", "queuectl %s: %v", args[0], err)
	}
	r := result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if r.code == 2 || strings.Contains(r.err, "panic") || strings.Contains(r.err, "internal") {
		a.c.violation("answer", "queuectl %s: exit code %d, %s", brief(args), r.code, r.err)
	}
	return r
}

func (a *campaignClient) backupFile() string { return filepath.Join(a.c.home, "backup-"+a.name) }
