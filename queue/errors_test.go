package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// errors.Is compares Errors only by their codes, even if an Error is wrapped or contains the number of a job.
func TestErrorsAreComparedByCode(t *testing.T) {
	err := fmt.Errorf("enqueue: %w", queue.InvalidFieldError("cwd", "is %s", "odd").WithBatchIndex(3))
	if !errors.Is(err, queue.ErrInvalid) || errors.Is(err, queue.ErrExists) || errors.Is(err, errors.New("invalid")) {
		t.Errorf("%v: does not match ErrInvalid, or matches another error", err)
	}
	if got, want := err.Error(), "enqueue: entry 3: cwd: is odd"; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
}

// DidYouMean suggests a known word only if that word is close.
func TestDidYouMeanSuggestsOnlyCloseWords(t *testing.T) {
	known := []string{"command", "max_retries", "id"}
	for word, want := range map[string]string{"comand": "command", "max-retries": "max_retries",
		"max-retry": "max_retries", "xyzzy": "", "": "", "ids": "id", strings.Repeat("c", 65): "",
		strings.Repeat("c", 1<<20): ""} {
		got := queue.DidYouMean(word, known)
		if want == "" && got != "" || want != "" && !strings.Contains(got, `"`+want+`"`) {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}
