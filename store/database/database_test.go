package database

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Statements take booleans and integers of all types except time.Duration as arguments, and nothing else as an integer.
func TestIntegerArgument(t *testing.T) {
	for _, c := range []struct {
		arg       any
		want      int64
		isInteger bool
	}{
		{-3, -3, true},
		{uint8(200), 200, true},
		{queue.UnixMillis(1 << 40), 1 << 40, true},
		{queue.Pending, int64(queue.Pending), true},
		{true, 1, true},
		{false, 0, true},
		{"7", 0, false},
		{1.5, 0, false},
		{nil, 0, false},
		{(*int)(nil), 0, false},
		{time.Second, 0, false},
	} {
		if got, isInteger := IntegerArgument(c.arg); got != c.want || isInteger != c.isInteger {
			t.Errorf("%T %v: got %d, %v, want %d, %v", c.arg, c.arg, got, isInteger, c.want, c.isInteger)
		}
	}
}
