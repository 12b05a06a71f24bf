package wire

import (
	"encoding/binary"
	"time"
)

// codec encodes or decodes the fields of a frame. It appends encoded fields to output. If decoding
// is set, it takes the fields from input instead. Decoded texts share the memory of input. If the
// input is damaged, damaged is set and all further fields are decoded as zero.
type codec struct {
	decoding bool
	output   []byte
	input    string
	damaged  bool
}

func (c *codec) fail() { c.damaged, c.input = true, "" }

// length decodes an unsigned varint, in the format of binary.AppendUvarint.
func (c *codec) length() (v uint64) {
	for i := 0; i < len(c.input) && i < binary.MaxVarintLen64; i++ {
		b := c.input[i]
		if i == binary.MaxVarintLen64-1 && b > 1 {
			break // more than 64 bits
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			c.input = c.input[i+1:]
			return v
		}
	}
	c.fail()
	return 0
}

func (c *codec) num(n *int64) {
	if !c.decoding {
		c.output = binary.AppendVarint(c.output, *n)
		return
	}
	v := c.length()
	*n = int64(v>>1) ^ -int64(v&1) // zigzag encoding, as in binary.AppendVarint
}

func (c *codec) nums(list ...*int64) {
	for _, n := range list {
		c.num(n)
	}
}

// optionalNum encodes or decodes an optional number at the end of a frame. The number is written
// only if it is not 0, or if another optional field follows. Frames of older versions do not
// contain it.
func (c *codec) optionalNum(n *int64, followed bool) {
	if c.decoding && (c.damaged || c.input == "") || !c.decoding && *n == 0 && !followed {
		return
	}
	c.num(n)
	if c.decoding && *n == 0 && c.input == "" {
		c.fail()
	}
}

// optionalFlag encodes or decodes an optional flag at the end of a frame. The flag is written only
// if it is set.
func (c *codec) optionalFlag(v *bool) {
	if c.decoding && (c.damaged || c.input == "") || !c.decoding && !*v {
		return
	}
	c.flag(v)
	if c.decoding && !*v {
		c.fail()
	}
}

// optionalText encodes or decodes an optional text at the end of a frame. The text is written only
// if it is not empty.
func (c *codec) optionalText(s *string) {
	if c.decoding && (c.damaged || c.input == "") || !c.decoding && *s == "" {
		return
	}
	c.text(s)
	if c.decoding && *s == "" {
		c.fail()
	}
}

func (c *codec) duration(d *time.Duration) { c.num((*int64)(d)) }

func (c *codec) text(s *string) {
	if !c.decoding {
		c.output = binary.AppendUvarint(c.output, uint64(len(*s)))
		c.output = append(c.output, *s...)
		return
	}
	n := c.length()
	if n > uint64(len(c.input)) {
		c.fail()
		n = 0
	}
	*s, c.input = c.input[:n], c.input[n:]
}

func (c *codec) bytes(b *[]byte) {
	if !c.decoding {
		c.output = binary.AppendUvarint(c.output, uint64(len(*b)))
		c.output = append(c.output, *b...)
		return
	}
	var s string
	if c.text(&s); s != "" {
		*b = []byte(s)
	}
}

func (c *codec) flag(v *bool) {
	switch {
	case !c.decoding && *v:
		c.output = append(c.output, 1)
	case !c.decoding:
		c.output = append(c.output, 0)
	case c.input == "" || c.input[0] > 1:
		c.fail()
	default:
		*v, c.input = c.input[0] == 1, c.input[1:]
	}
}

// list encodes or decodes a list. Each entry takes at least minBytes bytes. So if the list is too
// long for the rest of the input, the input is damaged.
func list[T any](c *codec, entries *[]T, minBytes int, each func(*codec, *T)) {
	n := int64(len(*entries))
	c.num(&n)
	if c.decoding {
		if n < 0 || n > int64(len(c.input)/minBytes) {
			c.fail()
			n = 0
		}
		if n > 0 {
			*entries = make([]T, n)
		}
	}
	for i := range *entries {
		each(c, &(*entries)[i])
	}
}

func (c *codec) texts(l *[]string)       { list(c, l, 1, (*codec).text) }
func (c *codec) leases(l *[]Lease)       { list(c, l, 2, (*codec).lease) }
func (c *codec) attempts(l *[]Attempt)   { list(c, l, 5, (*codec).attempt) }
func (c *codec) lease(l *Lease)          { c.nums(&l.Seq, &l.Fence) }
func (c *codec) cursor(cursor *[2]int64) { c.nums(&cursor[0], &cursor[1]) }

func (c *codec) attempt(a *Attempt) {
	c.lease(&a.Lease)
	c.nums(&a.Slot, &a.PID, &a.StartedAt)
}

func (c *codec) progress(p *Progress) {
	c.nums(&p.ReportedAt, &p.Percent)
	c.text(&p.Text)
}

func (c *codec) survivor(l *Survivor) {
	c.nums(&l.PID, &l.PGID)
	c.text(&l.Cookie)
}

func (c *codec) limit(l *Limit) {
	c.text(&l.Name)
	c.num(&l.Extent)
	c.text(&l.Mechanism)
}

// The fields methods encode or decode the fields of each frame, in their order on the wire.

func (f *Hello) fields(c *codec) {
	c.nums(&f.Protocol, &f.Epoch)
	c.text(&f.Version)
}

func (f *Setup) fields(c *codec) {
	c.num(&f.Workers)
	c.duration(&f.SettleDelay)
	c.duration(&f.StopTimeout)
}

func (f *Start) fields(c *codec) {
	c.lease(&f.Lease)
	c.text(&f.Queue)
	c.num(&f.Place.Rank)
	c.num(&f.Place.Seq)
	c.flag(&f.Place.Before)
	c.num(&f.UID)
	c.texts(&f.Argv)
	c.texts(&f.Env)
	c.text(&f.Cwd)
	c.num(&f.Umask)
	c.text(&f.Stdin)
	c.text(&f.StdinFile)
	c.duration(&f.Timeout)
	c.duration(&f.IdleTimeout)
	c.duration(&f.KillAfter)
	c.duration(&f.OutputGrace)
	c.num(&f.OutputLimit)
	c.flag(&f.Background)
	c.nums(&f.NotAfter, &f.BootDeadline, &f.Memory, &f.MilliCPUs, &f.Tasks)
	c.flag(&f.TTY)
	c.nums(&f.Nice, &f.NoFile)
	c.texts(&f.Secrets)
	c.flag(&f.Mask)
	c.bytes(&f.Deps)
	c.optionalFlag(&f.NoNewPrivileges)
}

func (f *Type) fields(c *codec) {
	c.lease(&f.Lease)
	c.num(&f.ID)
	c.bytes(&f.Data)
}

func (f *Resize) fields(c *codec) {
	c.lease(&f.Lease)
	c.nums(&f.Rows, &f.Cols)
}

func (f *TypeReply) fields(c *codec) {
	c.nums(&f.ID, &f.Written)
	c.flag(&f.Gone)
	c.optionalText(&f.Controls)
}

func (f *Drop) fields(c *codec) { c.lease(&f.Lease) }

func (f *Kill) fields(c *codec) {
	c.lease(&f.Lease)
	c.num(&f.Cause)
	c.duration(&f.Grace)
}

func (f *ExtendLeases) fields(c *codec) {
	c.duration(&f.Duration)
	c.optionalNum(&f.BootDeadline, false)
}

func (f *Signal) fields(c *codec) {
	c.lease(&f.Lease)
	c.num(&f.Number)
}

func (f *Pause) fields(c *codec) {
	c.lease(&f.Lease)
	c.num(&f.ID)
	c.flag(&f.On)
}

func (f *PauseReply) fields(c *codec) {
	c.nums(&f.ID, &f.UnchangedProcesses)
	c.flag(&f.Gone)
}

func (f *Watch) fields(c *codec) { c.lease(&f.Lease) }

func (f *Ack) fields(c *codec) { c.leases(&f.Leases) }

func (f *Read) fields(c *codec) {
	c.lease(&f.Lease)
	c.num(&f.ID)
	c.cursor(&f.Cursor)
	c.flag(&f.Wait)
}

func (f *Purge) fields(c *codec) {
	c.num(&f.ID)
	c.texts(&f.Refs)
}

func (f *PurgeReply) fields(c *codec) { c.num(&f.ID) }

func (f *Shutdown) fields(*codec) {}

func (f *Recover) fields(c *codec) {
	c.num(&f.ID)
	c.text(&f.Name)
	c.attempts(&f.Attempts)
}

func (f *Forget) fields(c *codec) { c.text(&f.Name) }

func (f *HelloReply) fields(c *codec) {
	c.num(&f.Protocol)
	c.text(&f.Version)
	c.num(&f.PID)
	c.attempts(&f.Attempts)
	c.leases(&f.EndedLeases)
	list(c, &f.Limits, 3, (*codec).limit)
}

func (f *HelloRefusal) fields(c *codec) { c.num(&f.Epoch) }

func (f *StartReport) fields(c *codec) { c.attempt(&f.Attempt) }

func (f *DropReply) fields(c *codec) {
	c.lease(&f.Lease)
	c.flag(&f.Dropped)
}

func (f *Stuck) fields(c *codec) { c.attempts(&f.Attempts) }

func (f *Result) fields(c *codec) {
	c.attempt(&f.Attempt)
	c.nums(&f.EndedAt, &f.Cause)
	c.flag(&f.TimedOut)
	c.flag(&f.IdleTimedOut)
	c.flag(&f.Shortage)
	c.flag(&f.Unkilled)
	c.nums(&f.ExitCode, &f.Signal)
	c.text(&f.Error)
	c.duration(&f.CPU)
	c.nums(&f.PeakRSS, &f.Leftovers, &f.DroppedBytes)
	c.bytes(&f.Output)
	c.text(&f.OutputRef)
	c.bytes(&f.Value)
	c.text(&f.ValueError)
	c.progress(&f.Progress)
	c.optionalNum(&f.PeakTasks, f.MemoryLimit)
	c.optionalFlag(&f.MemoryLimit)
}

func (f *ProgressReport) fields(c *codec) {
	c.lease(&f.Lease)
	c.progress(&f.Progress)
}

func (f *Chunk) fields(c *codec) {
	c.num(&f.ID)
	c.cursor(&f.Cursor)
	c.flag(&f.Done)
	c.flag(&f.Gone)
	c.bytes(&f.Data)
}

func (f *RecoverReply) fields(c *codec) {
	c.num(&f.ID)
	c.flag(&f.SameBoot)
	list(c, &f.Survivors, 3, (*codec).survivor)
	c.leases(&f.Alive)
	c.text(&f.Error)
}
