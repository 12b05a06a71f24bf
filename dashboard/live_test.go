package dashboard

import (
	"context"
	"fmt"
	"maps"
	"testing"
)

// A slow reader gets only the newest version of each part that has changed since its last read. A new reader
// gets all parts.
func TestPageReadersReceiveNewestParts(t *testing.T) {
	f := newLivePages()
	pages := make(chan *livePage, 1)
	fast, page, err := f.addSubscriber(7, "page", func(_ context.Context, page *livePage) { pages <- page })
	if err != nil {
		t.Fatal(err)
	}
	if <-pages != page {
		t.Fatal("the render loop got another feed than the reader")
	}
	slow, _, err := f.addSubscriber(7, "page", func(context.Context,
		*livePage) {
		t.Error("the page has a second render loop")
	})
	if err != nil {
		t.Fatal(err)
	}
	receives := func(who string, r *pageSubscriber, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		if unsent, ended := f.takeUnsentParts(page, r); ended {
			t.Errorf("the reader %s must disconnect", who)
		} else if unsent != nil {
			got = unsent.htmlByPartName
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s received %v, want %v", who, got, want)
		}
	}
	f.publishChangedParts(page, map[string]string{"a": "1", "b": "1"})
	receives("fast", fast, map[string]string{"a": "1", "b": "1"})
	f.publishChangedParts(page, map[string]string{"a": "2", "b": "1"})
	receives("fast", fast, map[string]string{"a": "2"})
	f.publishChangedParts(page, map[string]string{"a": "3", "b": "1"})
	receives("fast", fast, map[string]string{"a": "3"})
	receives("slow", slow, map[string]string{"a": "3", "b": "1"})
	f.publishChangedParts(page, map[string]string{"a": `3<time data-s="1">1s</time>`, "b": "1"})
	f.publishChangedParts(page, map[string]string{"a": `3<time data-s="2">2s</time>`, "b": "1"})
	receives("fast", fast, map[string]string{})
	late, _, _ := f.addSubscriber(7, "page", nil)
	receives("late", late, map[string]string{"a": `3<time data-s="2">2s</time>`, "b": "1"})
	for _, r := range []*pageSubscriber{fast, slow, late} {
		f.removeSubscriber(page, r)
	}
	if n := f.subscriberLimiter.InUse(7, 0); n != 0 || len(f.pagesByKey) != 0 {
		t.Errorf("%d readers of %d pages remain", n, len(f.pagesByKey))
	}
}

// After disconnectSubscribers, the readers of the page must disconnect, even if they have unsent parts. A reader that
// connects later gets a new livePage.
func TestPageReadersDisconnectFromClosedPage(t *testing.T) {
	f := newLivePages()
	idle := func(context.Context, *livePage) {}
	old, endedPage, _ := f.addSubscriber(7, "page", idle)
	f.publishChangedParts(endedPage, map[string]string{"a": "1"})
	f.disconnectSubscribers(endedPage)
	<-old.wake
	if _, ended := f.takeUnsentParts(endedPage, old); !ended {
		t.Error("the reader of the ended feed need not disconnect")
	}
	r, reopened, _ := f.addSubscriber(7, "page", idle)
	if _, ended := f.takeUnsentParts(reopened, r); ended || reopened == endedPage {
		t.Error("a reader of the new feed must disconnect")
	}
	f.disconnectSubscribers(endedPage) // a second call for the old page must not affect the new one
	f.removeSubscriber(endedPage, old)
	if f.pagesByKey["page"] != reopened {
		t.Error("the end of the old feed removed the new one")
	}
	f.removeSubscriber(reopened, r)
	if n := f.subscriberLimiter.InUse(7, 0); n != 0 || len(f.pagesByKey) != 0 {
		t.Errorf("%d readers of %d pages remain", n, len(f.pagesByKey))
	}
}

// The number of live pages of each user is limited. A user who reaches the limit does not affect other users.
func TestLivePagesPerUserAreLimited(t *testing.T) {
	f := newLivePages()
	idle := func(context.Context, *livePage) {}
	for i := range maxUserLivePages {
		if _, _, err := f.addSubscriber(7, fmt.Sprint(i), idle); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.addSubscriber(7, "more", idle); err == nil {
		t.Error("a page above the limit was accepted")
	}
	if _, _, err := f.addSubscriber(7, "0", idle); err != nil {
		t.Error(err)
	}
	if _, _, err := f.addSubscriber(8, "more", idle); err != nil {
		t.Error(err)
	}
}

// The number of readers of each user is limited. A user who reaches the limit does not affect other users.
func TestPageReadersPerUserAreLimited(t *testing.T) {
	f := newLivePages()
	for range maxUserPageSubscribers {
		if _, _, err := f.addSubscriber(7, "page", func(context.Context, *livePage) {}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.addSubscriber(7, "other", func(context.Context, *livePage) {}); err == nil {
		t.Error("a reader above the limit was accepted")
	}
	if _, _, err := f.addSubscriber(8, "other", func(context.Context, *livePage) {}); err != nil {
		t.Error(err)
	}
}
