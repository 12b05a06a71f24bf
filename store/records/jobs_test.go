package records

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// The encoded env and stdin are valid JSON for any content, and "" if a job has neither.
func TestEncodedInputIsValidJSON(t *testing.T) {
	strange := "\x00\x01\x1f \"\\/<>&~\x7fäöü\u2028\U0001f600\n\r\t"
	for _, terms := range []queue.ExecutionSettings{
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
		var got queue.ExecutionSettings
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, terms) {
			t.Errorf("got %+v, %v of %s", got, err, text)
		}
	}
}

// HaveEqualJobRows finds each change of a job that changes an argument of JobRowArgs, except UpdatedAt, and no other
// change.
func TestSameRowComparesRowArgs(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[rules.Job]()) {
		var original, changed rules.Job
		value := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)
		switch value.Kind() {
		case reflect.Bool:
			value.SetBool(true)
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			value.SetInt(1)
		case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			value.SetUint(1)
		case reflect.String:
			value.SetString("changed")
		case reflect.Pointer:
			value.Set(reflect.New(value.Type().Elem()))
		default: // structs, of which other fields are visible here, and slices, maps and functions
			continue
		}
		want := field.Name == "UpdatedAt" || slices.Equal(JobRowArgs(&original), JobRowArgs(&changed))
		if got := HaveEqualJobRows(&original, &changed); got != want {
			t.Errorf("with another %s: got %t, want %t", field.Name, got, want)
		}
	}
	first, second, other := "no such file", "no such file", "killed"
	if !HaveEqualJobRows(&rules.Job{NewError: &first}, &rules.Job{NewError: &second}) {
		t.Error("jobs with equal errors differ")
	}
	if HaveEqualJobRows(&rules.Job{NewError: &first}, &rules.Job{NewError: &other}) {
		t.Error("jobs with different errors are the same")
	}
}

// settingsAndInputRow is a row of AllJobColumns that holds only settings and an input.
type settingsAndInputRow struct {
	database.Row
	settings, input string
}

func (r settingsAndInputRow) BytesView(column int) []byte {
	return map[int][]byte{shortJobColumnCount + 2: []byte(r.settings), shortJobColumnCount + 3: []byte(r.input)}[column]
}

// A stored text that is not a JSON object counts as damaged, even if it is valid JSON.
func TestStoredTextMustBeJSONObject(t *testing.T) {
	const object = `{"stdin":"x"}`
	for _, c := range []struct {
		row     settingsAndInputRow
		damaged bool
	}{
		{settingsAndInputRow{settings: `{}`}, false},
		{settingsAndInputRow{settings: `{}`, input: object}, false},
		{settingsAndInputRow{settings: `{}`, input: `null`}, true},
		{settingsAndInputRow{settings: `{}`, input: `[]`}, true},
		{settingsAndInputRow{settings: `{}`, input: `"x"`}, true},
		{settingsAndInputRow{settings: `{}`, input: ` ` + object}, true},
		{settingsAndInputRow{settings: `{}`, input: missingInputMarker}, true},
		{settingsAndInputRow{settings: `null`, input: object}, true},
		{settingsAndInputRow{settings: ``, input: object}, true},
	} {
		var terms queue.ExecutionSettings
		if err := readTexts(c.row, true, &terms); (err != nil) != c.damaged {
			t.Errorf("settings %q and input %q: got error %v, want an error: %t", c.row.settings, c.row.input, err, c.damaged)
		}
	}
}
