package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Places come at once when many ask, stay while they do, and go when they have
// not met for a while.
func TestPlacesFollowTheCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set []string
		begun := time.Now()
		p := &places{most: 4, set: func(n int) { set = append(set, fmt.Sprintf("%v: %d", time.Since(begun), n)) }}
		for range 25 {
			p.crowded()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		p.crowded()
		time.Sleep(10 * time.Second)
		p.mu.Lock() // which look held
		defer p.mu.Unlock()
		if got, want := fmt.Sprint(set), "[0s: 4 4s: 1 12.5s: 4 14.5s: 1]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
