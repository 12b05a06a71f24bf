package queue_test

import (
	"math"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/queue"
)

// Durations are read as people write them.
func TestDurationsAreRead(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "90s": 90 * time.Second, "1.5h": 90 * time.Minute, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour,
		"0": 0, "0s": 0, "0.5": 500 * time.Millisecond, "500ms": 500 * time.Millisecond, "1w": 168 * time.Hour, "1e3": 1000 * time.Second,
		"1us": time.Microsecond, "1µs": time.Microsecond, "1ns": 1, "3650d": queue.MaxDuration, "315360000": queue.MaxDuration,
	} {
		if got, err := queue.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "s", "-1", "-1s", "1x", "1 s", "1s ", "1h-5m", "..s", "1..5s", "NaN", "Inf", "+Inf", "1e400", "3650d1ns", "3651d", "315360001", strings.Repeat("3650d", 30), "99999999999999999999d", "ns"} {
		if got, err := queue.ParseDuration(text); err == nil {
			t.Errorf("%q: got %v, want refused", text, got)
		}
	}
}

// A duration that is written is read back the same, to the nanosecond.
func TestDurationsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]int64{1, 1000, 1e6, 1e9, 60e9, 3600e9, 86400e9}).Draw(t, "unit")
		d := time.Duration(unit * rapid.Int64Range(0, int64(queue.MaxDuration)/unit).Draw(t, "n"))
		text := queue.FormatDuration(d)
		if got, err := queue.ParseDuration(text); err != nil || got != d {
			t.Fatalf("%d ns is written %q and read as %d, %v", d, text, got, err)
		}
	})
	for d, want := range map[time.Duration]string{-time.Second: "0s", 2470 * time.Millisecond: "2.47s", 90500 * time.Millisecond: "1m30.5s", time.Minute + 470*time.Millisecond: "1m0.47s", 47 * time.Microsecond: "47us"} {
		if got := queue.FormatDuration(d); got != want {
			t.Errorf("%d ns: got %q, want %q", d, got, want)
		}
	}
}

// Sizes are read in powers of 1024.
func TestSizesAreRead(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "64K": 64 << 10, "64kb": 64 << 10, "1MiB": 1 << 20, "2G": 2 << 30, "1.5k": 1536, " 1 m ": 1 << 20, "7b": 7, "1024T": 1 << 50} {
		if got, err := queue.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", "1P", "NaN", "inf", "1025T", "1e300G", "1 2", "true", "0x"} {
		if got, err := queue.ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want refused", text, got)
		}
	}
}

// A size that is written is read back the same, to the byte.
func TestSizesAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<20).Draw(t, "n") << rapid.IntRange(0, 30).Draw(t, "shift")
		if got, err := queue.ParseSize(queue.FormatSize(n)); err != nil || got != n {
			t.Fatalf("%d is written %q and read as %d, %v", n, queue.FormatSize(n), got, err)
		}
	})
}

// Instants are read and written in RFC 3339, UTC, with milliseconds.
func TestInstantsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := queue.Millis(rapid.Int64Range(1, 253_402_300_799_999).Draw(t, "ms"))
		if got, err := queue.ParseInstant(m.String()); err != nil || got != m {
			t.Fatalf("%d is written %q and read as %d, %v", m, m, got, err)
		}
	})
	if got := queue.Millis(0).String(); got != "" {
		t.Errorf("no instant: got %q, want nothing", got)
	}
	if got := queue.Millis(10).Add(time.Nanosecond); got != 11 {
		t.Errorf("10 ms and 1 ns: got %d, want 11: nothing is due early", got)
	}
}

// No text makes a duration or a size negative, too large, or a panic.
func FuzzDuration(f *testing.F) {
	for _, seed := range []string{"90", "1h30m", "1.5h", "7d", "1µs", "1e3", "-1", "NaN", "Inf", "0x1p4", "1MiB", "64K", "..s", "9999999999999999999w"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := queue.ParseDuration(text)
		if err == nil && (d < 0 || d > queue.MaxDuration) || err != nil && d != 0 {
			t.Fatalf("%q: got %d, %v", text, d, err)
		}
		if again, failed := queue.ParseDuration(queue.FormatDuration(d)); failed != nil || again != d {
			t.Fatalf("%q is %d and read again as %d, %v", text, d, again, failed)
		}
		n, err := queue.ParseSize(text)
		if err == nil && (n < 0 || n > 1<<50) || err != nil && n != 0 {
			t.Fatalf("%q: got %d bytes, %v", text, n, err)
		}
		if _, err := queue.Seconds(math.NaN()); err == nil {
			t.Fatal("no number of seconds was taken")
		}
	})
}

// A path in an advice is one word of the shell's.
func TestWords(t *testing.T) {
	for text, plain := range map[string]bool{"/var/lib/queuectl": true, "a b": false, "": false, "it's": false, "$HOME/x": false, "Größe": true, "a;b": false} {
		got := queue.Word(text)
		if plain != (got == text) {
			t.Errorf("%q became %s", text, got)
		}
		if _, err := exec.LookPath("/bin/sh"); err != nil {
			continue
		}
		if out, err := exec.Command("/bin/sh", "-c", "printf %s "+got).Output(); err != nil || string(out) != text {
			t.Errorf("%q is %q to the shell: %v", text, out, err)
		}
	}
}
