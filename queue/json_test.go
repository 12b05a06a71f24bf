package queue_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
)

// jsonNestingDepth returns how deep a JSON text is nested. It uses the decoder of package json.
func jsonNestingDepth(raw []byte) (deepestLevel int) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	for n := 0; ; {
		token, err := d.Token()
		if err != nil {
			return deepestLevel
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			n++
			deepestLevel = max(deepestLevel, n)
		case json.Delim('}'), json.Delim(']'):
			n--
		}
	}
}

// JSON that is nested more than 32 levels deep is rejected. Brackets inside strings do not count.
func TestJSONDepthIsBounded(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	for raw, good := range map[string]bool{
		string(nested(32)): true, string(nested(33)): false, string(nested(1 << 20)): false,
		`"` + strings.Repeat("[", 99) + `"`: true, `"\"` + strings.Repeat("{", 99) + `"`: true,
		"": false, "{": false, "1 2": false, "\"\xff\"": false, "\"a\x00b\"": false, `{"a":1,}`: false, `"\ud800"`: true,
	} {
		err := queue.CheckJSON([]byte(raw))
		if good != (err == nil) || err != nil && !errors.Is(err, queue.ErrParse) {
			t.Errorf("CheckJSON(%.40q) returned %v, want it accepted: %v", raw, err, good)
		}
	}
}

// One half of an escaped surrogate pair is rejected, and not silently replaced. A text that only looks like an escape,
// because its backslash is itself escaped, is accepted.
func TestHalfSurrogatePairIsRejected(t *testing.T) {
	for raw, want := range map[string]string{
		`"\ud83d\ude00"`: "\U0001F600", `"\\ud800"`: `\ud800`, `"\u00e9\n"`: "é\n", `"\ufffd"`: "\ufffd",
		`"\\\ud83d\ude00."`: "\\\U0001F600.",
		`"\ud800"`:          "", `"a\udc00"`: "", `"\ud83d\ud83d\ude00"`: "", `"\ud83d."`: "", `"\uD83D\n"`: "",
		`"\\\udfff"`: "", `"\ud800\\udc00"`: "",
	} {
		got, err := queue.DecodeJSONString([]byte(raw))
		if want == "" && (err == nil || !strings.Contains(err.Error(), "surrogate")) || want != "" &&
			(err != nil || got != want) {
			t.Errorf("%s: got %q, %v, want %q", raw, got, err, want)
		}
	}
	for field, raw := range map[string]string{
		"command": `{"command":"echo \ud800"}`, "argv": `{"argv":["a","\udfff"]}`,
		"env": `{"command":"a","env":{"A":"\ud800"}}`, "depends_on": `{"command":"a","depends_on":["\ud800"]}`,
	} {
		err := json.Unmarshal([]byte(raw), new(queue.Spec))
		var e *queue.Error
		if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != field ||
			!strings.Contains(e.Message, "surrogate") {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}

// CheckJSON accepts exactly the input that is valid JSON in UTF-8 and is not nested too deeply. For such input,
// EachMember and EachElement pass on the same values as package json.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{}`, `[]`, ` { "a" : 1 , "b":[1,{"c":"\"}"}] } `, `[1,"\\",null,true,{"a":[]}]`,
		`{"a":1,"a":2}`, `{"\u0061":1}`, `{"a":-1e5}`, "\"\xff\"", `1`, `[`, `{"a"}`, `[1,]`, `["a\n\"\\"]`, `["a\u0041"]`,
		`["a\x"]`, "[\"a\x01\"]", `["a\"]`, `"a`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		// CheckJSON handles long strings separately, so also test a line with long strings.
		long := []byte(strings.ReplaceAll(string(raw), "a", strings.Repeat("a", 300)))
		for _, line := range [][]byte{long, raw} {
			want := json.Valid(line) && utf8.Valid(line) && jsonNestingDepth(line) <= 32
			if got := queue.CheckJSON(line) == nil; got != want {
				t.Fatalf("%q: got %v, want %v", line, got, want)
			}
		}
		if utf8.Valid(raw) {
			line := queue.AppendJSONString([]byte{' '}, string(raw))
			text, err := queue.DecodeJSONString(line[1:])
			var same string
			if err != nil || text != string(raw) || queue.CheckJSON(line) != nil || json.Unmarshal(line, &same) != nil ||
				same != text {
				t.Fatalf("%q as JSON is %s, which is read as %q, %v", raw, line, text, err)
			}
		}
		want := json.Valid(raw) && utf8.Valid(raw) && jsonNestingDepth(raw) <= 32
		if !want {
			return
		}
		var list []json.RawMessage
		var got []string
		err := queue.EachElement(raw, func(v json.RawMessage) error { got = append(got, string(v)); return nil })
		if isArray := json.Unmarshal(raw, &list) == nil && strings.TrimSpace(string(raw)) != "null"; isArray != (err == nil) {
			t.Fatalf("%q: got %v, want an array: %v", raw, err, isArray)
		}
		for i := range list {
			if err == nil && (len(got) != len(list) || got[i] != string(list[i])) {
				t.Fatalf("%q: got %q, want %q", raw, got, list)
			}
		}
		compareMembersWithLibrary(t, raw)
	})
}

// compareMembersWithLibrary checks that EachMember passes on the same members as the standard decoder.
func compareMembersWithLibrary(t *testing.T, raw []byte) {
	var m map[string]json.RawMessage
	isObject := json.Unmarshal(raw, &m) == nil && strings.TrimSpace(string(raw)) != "null"
	got, names := map[string]string{}, []string{}
	err := queue.EachMember(raw, func(name string, v json.RawMessage) error {
		got[name] = string(v)
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	if len(slices.Compact(names)) != len(got) {
		t.Fatalf("%q: Members passed a member twice: %q", raw, names)
	}
	if err != nil && isObject && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "too many") ||
		err == nil && !isObject {
		t.Fatalf("%q: got %v, want an object: %v", raw, err, isObject)
	}
	for name, v := range m {
		if err == nil && got[name] != string(v) {
			t.Fatalf("%q: %q: got %q, want %q", raw, name, got[name], v)
		}
	}
	if err == nil && len(got) != len(m) {
		t.Fatalf("%q: got %d members, want %d", raw, len(got), len(m))
	}
}
