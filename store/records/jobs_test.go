package records

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// The stored form of env and stdin is valid JSON for any content, and empty if a job has neither.
func TestInputIsJSON(t *testing.T) {
	strange := "\x00\x01\x1f \"\\/<>&~\x7fäöü\u2028\U0001f600\n\r\t"
	for _, terms := range []queue.Execution{
		{}, {Stdin: "x"}, {Env: []string{"A=1"}}, {Env: []string{"", "A=", "B=x y"}, Stdin: strange},
		{Env: []string{strange, strange}}, {Stdin: strings.Repeat("x\n", 1000)},
	} {
		text := EncodeInput(&terms)
		if (text == "") != (len(terms.Env) == 0 && terms.Stdin == "") {
			t.Errorf("%+v: got %q", terms, text)
		}
		if text == "" {
			continue
		}
		var got queue.Execution
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, terms) {
			t.Errorf("got %+v, %v of %s", got, err, text)
		}
	}
}
