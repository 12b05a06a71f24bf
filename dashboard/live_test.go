package dashboard

import (
	"context"
	"fmt"
	"maps"
	"testing"
)

// A reader gets only the newest version of the parts that changed since its last read, even if it is slow. A
// reader that joins later gets all parts.
func TestReadersReceiveTheNewestParts(t *testing.T) {
	f := newFeeds()
	pages := make(chan *feed, 1)
	fast, page, err := f.join(7, "page", func(_ context.Context, page *feed) { pages <- page })
	if err != nil {
		t.Fatal(err)
	}
	if <-pages != page {
		t.Fatal("another page is watched")
	}
	slow, _, err := f.join(7, "page", func(context.Context, *feed) { t.Error("the page is watched twice") })
	if err != nil {
		t.Fatal(err)
	}
	receives := func(who string, r *reader, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		if news, over := f.take(page, r); over {
			t.Errorf("%s is to leave", who)
		} else if news != nil {
			got = news.parts
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s received %v, want %v", who, got, want)
		}
	}
	f.publish(page, map[string]string{"a": "1", "b": "1"})
	receives("fast", fast, map[string]string{"a": "1", "b": "1"})
	f.publish(page, map[string]string{"a": "2", "b": "1"})
	receives("fast", fast, map[string]string{"a": "2"})
	f.publish(page, map[string]string{"a": "3", "b": "1"})
	receives("fast", fast, map[string]string{"a": "3"})
	receives("slow", slow, map[string]string{"a": "3", "b": "1"})
	f.publish(page, map[string]string{"a": `3<time data-s="1">1s</time>`, "b": "1"})
	f.publish(page, map[string]string{"a": `3<time data-s="2">2s</time>`, "b": "1"})
	receives("fast", fast, map[string]string{})
	late, _, _ := f.join(7, "page", nil)
	receives("late", late, map[string]string{"a": `3<time data-s="2">2s</time>`, "b": "1"})
	for _, r := range []*reader{fast, slow, late} {
		f.removeReader(7, "page", page, r)
	}
	if n := f.readers.InUse(7, 0); n != 0 || len(f.byKey) != 0 {
		t.Errorf("%d readers of %d pages are left", n, len(f.byKey))
	}
}

// The readers of an ended feed must disconnect, even if they have unread parts. A reader that joins later
// starts a new feed.
func TestReadersLeaveAnEndedPage(t *testing.T) {
	f := newFeeds()
	idle := func(context.Context, *feed) {}
	old, over, _ := f.join(7, "page", idle)
	f.publish(over, map[string]string{"a": "1"})
	f.end("page", over)
	<-old.wake
	if _, ended := f.take(over, old); !ended {
		t.Error("its reader stays")
	}
	r, reopened, _ := f.join(7, "page", idle)
	if _, ended := f.take(reopened, r); ended || reopened == over {
		t.Error("a reader that joins later must leave too")
	}
	f.end("page", over) // end is called a second time, for the old feed
	f.removeReader(7, "page", over, old)
	if f.byKey["page"] != reopened {
		t.Error("the page that was created again is forgotten")
	}
	f.removeReader(7, "page", reopened, r)
	if n := f.readers.InUse(7, 0); n != 0 || len(f.byKey) != 0 {
		t.Errorf("%d readers of %d pages are left", n, len(f.byKey))
	}
}

// Each user has a limited number of live pages. Reaching the limit does not affect other users.
func TestFeedsAreBounded(t *testing.T) {
	f := newFeeds()
	idle := func(context.Context, *feed) {}
	for i := range maxUserFeeds {
		if _, _, err := f.join(7, fmt.Sprint(i), idle); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.join(7, "more", idle); err == nil {
		t.Error("one more is kept up to date")
	}
	if _, _, err := f.join(7, "0", idle); err != nil {
		t.Error(err)
	}
	if _, _, err := f.join(8, "more", idle); err != nil {
		t.Error(err)
	}
}

// Each user has a limited number of readers. Reaching the limit does not affect other users.
func TestReadersAreBounded(t *testing.T) {
	f := newFeeds()
	for range maxUserReaders {
		if _, _, err := f.join(7, "page", func(context.Context, *feed) {}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.join(7, "other", func(context.Context, *feed) {}); err == nil {
		t.Error("one more is let in")
	}
	if _, _, err := f.join(8, "other", func(context.Context, *feed) {}); err != nil {
		t.Error(err)
	}
}
