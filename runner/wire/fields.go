package wire

import (
	"encoding/binary"
	"time"
)

type encoder struct{ b []byte }

func (e *encoder) num(n int64)          { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) span(d time.Duration) { e.num(int64(d)) }
func (e *encoder) text(s string) {
	e.b = binary.AppendUvarint(e.b, uint64(len(s)))
	e.b = append(e.b, s...)
}
func (e *encoder) flag(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}
func (e *encoder) texts(list []string) {
	e.num(int64(len(list)))
	for _, s := range list {
		e.text(s)
	}
}
func (e *encoder) lease(l Lease) { e.num(l.Seq); e.num(l.Fence) }
func (e *encoder) leases(list []Lease) {
	e.num(int64(len(list)))
	for _, l := range list {
		e.lease(l)
	}
}
func (e *encoder) attempts(list []Attempt) {
	e.num(int64(len(list)))
	for _, a := range list {
		e.attempt(a)
	}
}
func (e *encoder) attempt(a Attempt) {
	e.lease(a.Lease)
	e.num(a.Slot)
	e.num(a.PID)
	e.num(a.StartedAt)
}

// decoder reads fields, which share its text; once one is damaged it is bad and
// yields zeros.
type decoder struct {
	s   string
	bad bool
}

func (d *decoder) fail() {
	d.bad, d.s = true, ""
}

// length reads an unsigned varint, as binary.AppendUvarint writes it.
func (d *decoder) length() (v uint64) {
	for i := 0; i < len(d.s) && i < binary.MaxVarintLen64; i++ {
		c := d.s[i]
		if i == binary.MaxVarintLen64-1 && c > 1 {
			break // more than 64 bits
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.s = d.s[i+1:]
			return v
		}
	}
	d.fail()
	return 0
}

func (d *decoder) num() int64 {
	v := d.length()
	return int64(v>>1) ^ -int64(v&1) // as binary.AppendVarint folds signs
}

func (d *decoder) span() time.Duration { return time.Duration(d.num()) }

func (d *decoder) text() string {
	n := d.length()
	if n > uint64(len(d.s)) {
		d.fail()
		return ""
	}
	t := d.s[:n]
	d.s = d.s[n:]
	return t
}

func (d *decoder) flag() bool {
	if len(d.s) == 0 || d.s[0] > 1 {
		d.fail()
		return false
	}
	v := d.s[0] == 1
	d.s = d.s[1:]
	return v
}

// count reads a number of entries of at least least bytes each.
func (d *decoder) count(least int) int {
	n := d.num()
	if n < 0 || n > int64(len(d.s)/least) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) texts() []string {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = d.text()
	}
	return list
}

func (d *decoder) lease() Lease { return Lease{d.num(), d.num()} }
func (d *decoder) leases() []Lease {
	list := make([]Lease, d.count(2))
	for i := range list {
		list[i] = d.lease()
	}
	return list
}
func (d *decoder) attempts() []Attempt {
	list := make([]Attempt, d.count(5))
	for i := range list {
		list[i] = d.attempt()
	}
	return list
}
func (d *decoder) attempt() Attempt {
	return Attempt{d.lease(), d.num(), d.num(), d.num()}
}

func (f *Hello) put(e *encoder)  { e.num(f.Protocol); e.num(f.Epoch); e.text(f.Version) }
func (f *Hello) take(d *decoder) { f.Protocol, f.Epoch, f.Version = d.num(), d.num(), d.text() }

func (f *Setup) put(e *encoder) { e.num(f.Workers); e.span(f.SettleDelay); e.span(f.StopTimeout) }
func (f *Setup) take(d *decoder) {
	f.Workers, f.SettleDelay, f.StopTimeout = d.num(), d.span(), d.span()
}

func (f *Start) put(e *encoder) {
	e.lease(f.Lease)
	e.num(f.UID)
	e.texts(f.Argv)
	e.texts(f.Env)
	e.text(f.Cwd)
	e.num(f.Umask)
	e.text(f.Stdin)
	e.text(f.StdinFile)
	e.span(f.Timeout)
	e.span(f.IdleTimeout)
	e.span(f.KillAfter)
	e.span(f.OutputGrace)
	e.num(f.OutputLimit)
	e.flag(f.Background)
	e.num(f.NotAfter)
	e.num(f.By)
	e.num(f.Memory)
	e.num(f.MilliCPUs)
	e.num(f.Tasks)
}
func (f *Start) take(d *decoder) {
	*f = Start{
		d.lease(), d.num(), d.texts(), d.texts(), d.text(), d.num(), d.text(), d.text(), d.span(), d.span(), d.span(), d.span(), d.num(), d.flag(),
		d.num(), d.num(), d.num(), d.num(), d.num(),
	}
}

func (f *Drop) put(e *encoder)  { e.lease(f.Lease) }
func (f *Drop) take(d *decoder) { f.Lease = d.lease() }

func (f *Kill) put(e *encoder)  { e.lease(f.Lease); e.num(f.Cause); e.span(f.Grace) }
func (f *Kill) take(d *decoder) { f.Lease, f.Cause, f.Grace = d.lease(), d.num(), d.span() }

func (f *Signal) put(e *encoder)  { e.lease(f.Lease); e.num(f.Number) }
func (f *Signal) take(d *decoder) { f.Lease, f.Number = d.lease(), d.num() }

func (f *Watch) put(e *encoder)  { e.lease(f.Lease) }
func (f *Watch) take(d *decoder) { f.Lease = d.lease() }

func (f *Ack) put(e *encoder)  { e.leases(f.Leases) }
func (f *Ack) take(d *decoder) { f.Leases = d.leases() }

func (f *Read) put(e *encoder) {
	e.lease(f.Lease)
	e.num(f.ID)
	e.num(f.Cursor[0])
	e.num(f.Cursor[1])
	e.flag(f.Wait)
}
func (f *Read) take(d *decoder) {
	*f = Read{d.lease(), d.num(), [2]int64{d.num(), d.num()}, d.flag()}
}

func (f *Purge) put(e *encoder)  { e.num(f.ID); e.texts(f.Refs) }
func (f *Purge) take(d *decoder) { f.ID, f.Refs = d.num(), d.texts() }

func (f *Purged) put(e *encoder)  { e.num(f.ID) }
func (f *Purged) take(d *decoder) { f.ID = d.num() }

func (f *Shutdown) put(*encoder)  {}
func (f *Shutdown) take(*decoder) {}

func (f *Recover) put(e *encoder)  { e.num(f.ID); e.text(f.Name); e.attempts(f.Attempts) }
func (f *Recover) take(d *decoder) { f.ID, f.Name, f.Attempts = d.num(), d.text(), d.attempts() }

func (f *Forget) put(e *encoder)  { e.text(f.Name) }
func (f *Forget) take(d *decoder) { f.Name = d.text() }

func (f *HelloReply) put(e *encoder) {
	e.num(f.Protocol)
	e.text(f.Version)
	e.num(f.PID)
	e.attempts(f.Attempts)
	e.leases(f.Ended)
}
func (f *HelloReply) take(d *decoder) {
	f.Protocol, f.Version, f.PID = d.num(), d.text(), d.num()
	f.Attempts = d.attempts()
	f.Ended = d.leases()
}

func (f *Refused) put(e *encoder)  { e.num(f.Epoch) }
func (f *Refused) take(d *decoder) { f.Epoch = d.num() }

func (f *Started) put(e *encoder)  { e.attempt(f.Attempt) }
func (f *Started) take(d *decoder) { f.Attempt = d.attempt() }

func (f *Dropped) put(e *encoder)  { e.lease(f.Lease); e.flag(f.Dropped) }
func (f *Dropped) take(d *decoder) { f.Lease, f.Dropped = d.lease(), d.flag() }

func (f *Stuck) put(e *encoder)  { e.attempts(f.Attempts) }
func (f *Stuck) take(d *decoder) { f.Attempts = d.attempts() }

func (f *Result) put(e *encoder) {
	e.attempt(f.Attempt)
	e.num(f.EndedAt)
	e.num(f.Cause)
	e.flag(f.TimedOut)
	e.flag(f.Silent)
	e.flag(f.Shortage)
	e.flag(f.Unkilled)
	e.num(f.ExitCode)
	e.num(f.Signal)
	e.text(f.Error)
	e.span(f.CPU)
	e.num(f.PeakRSS)
	e.num(f.Leftovers)
	e.num(f.Dropped)
	e.text(string(f.Output))
	e.text(f.OutputRef)
}
func (f *Result) take(d *decoder) {
	f.Attempt = d.attempt()
	f.EndedAt, f.Cause = d.num(), d.num()
	f.TimedOut, f.Silent, f.Shortage, f.Unkilled = d.flag(), d.flag(), d.flag(), d.flag()
	f.ExitCode, f.Signal, f.Error = d.num(), d.num(), d.text()
	f.CPU, f.PeakRSS, f.Leftovers, f.Dropped = d.span(), d.num(), d.num(), d.num()
	if p := d.text(); p != "" {
		f.Output = []byte(p)
	}
	f.OutputRef = d.text()
}

func (f *Chunk) put(e *encoder) {
	e.num(f.ID)
	e.num(f.Cursor[0])
	e.num(f.Cursor[1])
	e.flag(f.Done)
	e.flag(f.Gone)
	e.text(string(f.Data))
}
func (f *Chunk) take(d *decoder) {
	f.ID, f.Cursor, f.Done, f.Gone = d.num(), [2]int64{d.num(), d.num()}, d.flag(), d.flag()
	f.Data = []byte(d.text())
}

func (f *Recovered) put(e *encoder) {
	e.num(f.ID)
	e.flag(f.SameBoot)
	e.num(int64(len(f.Left)))
	for _, l := range f.Left {
		e.num(l.PID)
		e.num(l.PGID)
		e.text(l.Cookie)
	}
	e.leases(f.Alive)
	e.text(f.Error)
}
func (f *Recovered) take(d *decoder) {
	f.ID, f.SameBoot = d.num(), d.flag()
	f.Left = make([]Left, d.count(3))
	for i := range f.Left {
		f.Left[i] = Left{d.num(), d.num(), d.text()}
	}
	f.Alive = d.leases()
	f.Error = d.text()
}
