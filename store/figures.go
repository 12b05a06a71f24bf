package store

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Figures are what is counted of the attempts of one queue in one period: in that in which a start
// or an end was recorded, by the store's clock. Over all periods Started is all ends and the
// attempts that run. What ends without an attempt, as a job that is cancelled while it waits, is
// not counted.
type Figures struct {
	Started   int64
	Completed int64 // attempts that ended, by what their job came to
	Failed    int64 // to be tried again
	Dead      int64
	Cancelled int64
	Returned  int64 // pending or held: stopped, deferred, or lost without counting

	Waits Histogram // of each start: since its job was due and ready
	Runs  Histogram // of each end: since the attempt's start
}

// Begin counts the start of an attempt after a wait.
func (f *Figures) Begin(wait time.Duration) {
	f.Started++
	f.Waits.Observe(wait)
}

// End counts the end of an attempt after a run, by the state that its job came to.
func (f *Figures) End(as queue.State, run time.Duration) {
	switch as {
	case queue.Completed:
		f.Completed++
	case queue.Failed:
		f.Failed++
	case queue.Dead:
		f.Dead++
	case queue.Cancelled:
		f.Cancelled++
	default:
		f.Returned++
	}
	f.Runs.Observe(run)
}

// Add adds other figures.
func (f *Figures) Add(g *Figures) {
	f.Started += g.Started
	f.Completed += g.Completed
	f.Failed += g.Failed
	f.Dead += g.Dead
	f.Cancelled += g.Cancelled
	f.Returned += g.Returned
	f.Waits.add(&g.Waits)
	f.Runs.add(&g.Runs)
}

// The buckets of a Histogram. Bucket k holds what takes longer than Bound(k-1) and at most
// Bound(k); the first one also what takes no millisecond, the last one also what takes longer.
const (
	Buckets     = 64
	FirstBucket = -20 // number of the first one in the schema
)

// Bound is the upper bound of bucket k, in seconds: 2^((k+FirstBucket)/2), from under 1 ms to 34
// days. They are those of Prometheus' native histograms of schema 1.
func Bound(k int) float64 { return math.Exp2(float64(k+FirstBucket) / 2) }

// Histogram is how often something took how long, in exponential buckets.
type Histogram struct {
	Counts [Buckets]int64
	Sum    int64 // of all, in milliseconds
}

// longest is what is counted of what took longer.
const longest = 34 * 24 * time.Hour

// Observe counts one duration, to the millisecond; one below 0 is 0.
func (h *Histogram) Observe(d time.Duration) {
	d = min(max(0, d.Truncate(time.Millisecond)), longest)
	h.Sum += d.Milliseconds()
	k := 0
	if d > 0 {
		k = int(math.Ceil(2*math.Log2(d.Seconds()))) - FirstBucket
	}
	h.Counts[min(max(0, k), Buckets-1)]++
}

func (h *Histogram) add(g *Histogram) {
	h.Sum += g.Sum
	for k, n := range g.Counts {
		h.Counts[k] += n
	}
}

// Count is how many durations were counted.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile is the duration that the part q, above 0 and up to 1, of all took at most: 0.5 is the
// median. It lies in the bucket of the true one, so it is less than √2 times as long or as short.
// Of none it is 0, and known is false.
func (h *Histogram) Quantile(q float64) (d time.Duration, known bool) {
	rank, before := q*float64(h.Count()), 0.0
	for k, n := range h.Counts {
		if n == 0 || before+float64(n) < rank {
			before += float64(n)
			continue
		}
		if k == 0 {
			return 0, true
		}
		seconds := Bound(k) * math.Exp2(((rank-before)/float64(n)-1)/2)
		return time.Duration(seconds*1000+0.5) * time.Millisecond, true
	}
	return 0, false
}

// Append appends the histogram to b in few bytes, none if it is empty, for ReadHistogram.
func (h *Histogram) Append(b []byte) []byte {
	empty := uint64(0)
	begun := false
	for _, n := range h.Counts {
		if n == 0 {
			empty++
			continue
		}
		if !begun {
			b, begun = binary.AppendUvarint(b, uint64(h.Sum)), true
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, empty), uint64(n))
		empty = 0
	}
	return b
}

// ReadHistogram reads what Append has written: what is damaged is an empty one.
func ReadHistogram(b []byte) (h Histogram) {
	damaged := false
	next := func(most uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > most {
			damaged, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	if len(b) > 0 {
		h.Sum = int64(next(math.MaxInt64))
	}
	for k := 0; len(b) > 0; k++ {
		if k += int(next(Buckets)); k < Buckets {
			h.Counts[k] = int64(next(math.MaxInt64))
		} else {
			damaged = true
		}
	}
	if damaged {
		return Histogram{}
	}
	return h
}

// Grain is how long the periods are that figures are kept of. They begin at whole minutes, hours
// and days of UTC.
type Grain int

// The grains, the finest first.
const (
	Minute Grain = iota + 1
	Hour
	Day
)

var grains = [...]struct {
	name         string
	length, kept time.Duration
}{
	Minute: {"minute", time.Minute, 2 * 24 * time.Hour},
	Hour:   {"hour", time.Hour, 60 * 24 * time.Hour},
	Day:    {"day", 24 * time.Hour, 3 * 365 * 24 * time.Hour},
}

// String is the grain's name.
func (g Grain) String() string { return grains[g].name }

// Length is how long a period is.
func (g Grain) Length() time.Duration { return grains[g].length }

// Kept is how long at least the figures of a period are kept.
func (g Grain) Kept() time.Duration { return grains[g].kept }

// Floor is when the period began that holds an instant.
func (g Grain) Floor(at queue.Millis) queue.Millis {
	return at - at%queue.Millis(g.Length().Milliseconds())
}

// Oldest is when the first period began that is kept at an instant.
func (g Grain) Oldest(now queue.Millis) queue.Millis {
	return g.Floor(now - queue.Millis(g.Kept().Milliseconds()))
}

// Bounds of figures.
const (
	// MaxNamed is how many queues have figures of their own in one period, beside the default one
	// and those that have a rule then. Those of all others stand together under OtherQueues.
	MaxNamed = 64 // and in all that was ever recorded
	// MaxStatsQueues is how many queues one answer names: of more the last ones that had any.
	MaxStatsQueues = 1000
	// OtherQueues stands for queues that are not named; none can have this name.
	OtherQueues = "(others)"
)

// StatsFilter says which figures are read: of a queue, or of all if it is "", of periods that begin
// before Until (0 is now) and end after Since. What is older than is kept of the grain is not there.
type StatsFilter struct {
	Queue        string
	Since, Until queue.Millis
	// Grain is how long the periods are; 0 is the finest that is kept since Since.
	Grain Grain
	// Series asks for each period too.
	Series bool
	// Ever asks for all that was ever recorded instead, by queues that keep their names: no figure of
	// any ever becomes less. Nothing else is looked at then.
	Ever bool
}

// Range is what the filter means at an instant: periods of a grain that begin from since on and
// before until.
func (f *StatsFilter) Range(now queue.Millis) (g Grain, since, until queue.Millis) {
	g = f.Grain
	if g == 0 {
		for g = Minute; g < Day && g.Floor(f.Since) < g.Oldest(now); {
			g++
		}
	}
	if until = f.Until; until == 0 || until > now {
		until = now + 1
	}
	return g, max(g.Floor(f.Since), g.Oldest(now)), g.Floor(until - 1).Add(g.Length())
}

// Stats are figures of a range of whole periods.
type Stats struct {
	Grain        Grain
	Since, Until queue.Millis   // from here on, and up to here; the last period may not be over
	Queues       []QueueFigures // by name, but OtherQueues last
	// Periods are those with figures, of all queues that were asked for together, the first one first.
	Periods []PeriodFigures
}

// QueueFigures are the figures of a queue over all of a range.
type QueueFigures struct {
	Queue string
	Figures
}

// PeriodFigures are the figures of a period, which begins then.
type PeriodFigures struct {
	At queue.Millis
	Figures
}

// MaxEstimates is of how many commands it is known how long they run usually: of more the last ones
// that completed.
const MaxEstimates = 4096

// Estimate is how long a command usually runs: the geometric mean of its runs, of which the last
// eight or so count most. Its zero value knows of none.
type Estimate struct {
	Log  float64 // of the mean in milliseconds, to the base e
	Runs uint8   // up to mostRuns
}

// mostRuns is how many runs a new one is weighed against, with itself.
const mostRuns = 8

// Note learns of a run.
func (e *Estimate) Note(run time.Duration) {
	e.Runs = min(e.Runs+1, mostRuns)
	e.Log += (math.Log(float64(max(1, run.Milliseconds()))) - e.Log) / float64(e.Runs)
}

// Usual is how long a run usually takes, at least 1 ms; 0 if none is known.
func (e *Estimate) Usual() time.Duration {
	if e.Runs == 0 {
		return 0
	}
	return time.Duration(math.Exp(e.Log)+0.5) * time.Millisecond
}
