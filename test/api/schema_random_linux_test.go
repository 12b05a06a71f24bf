package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/internal/testrig"
)

// randomSchemaValues creates random values that a JSON Schema permits, or changes values so that a schema forbids
// them. The same seed gives the same values.
type randomSchemaValues struct {
	*rand.Rand
	// generators of random texts, by the regular expression that the texts match
	textGeneratorsByPattern map[string]*rapid.Generator[string]
}

func newRandomValues(seed uint64) *randomSchemaValues {
	return &randomSchemaValues{rand.New(rand.NewPCG(seed, 1)), map[string]*rapid.Generator[string]{}}
}

// randomElement returns one of the values at random.
func randomElement[T any](d *randomSchemaValues, values []T) T { return values[d.IntN(len(values))] }

// schemaNumber returns the number that the schema contains under the given keyword, or defaultValue if the schema does
// not contain the keyword.
func schemaNumber(schema testrig.JSONFields, keyword string, defaultValue float64) float64 {
	if n, ok := schema[keyword].(float64); ok {
		return n
	}
	return defaultValue
}

// schemaTypes returns the types that a schema permits.
func schemaTypes(schema testrig.JSONFields) []string {
	switch kind := schema["type"].(type) {
	case string:
		return []string{kind}
	case []any:
		list := make([]string, len(kind))
		for i := range kind {
			list[i] = kind[i].(string)
		}
		return list
	}
	return []string{"integer"} // the schema permits any type, so use an integer
}

// drawValue returns a random value that has the type and the bounds of the schema. It ignores conditions that
// concern several members.
func (d *randomSchemaValues) drawValue(schema testrig.JSONFields) any {
	if list, ok := schema["enum"].([]any); ok {
		return randomElement(d, list)
	}
	switch randomElement(d, schemaTypes(schema)) {
	case "null":
		return nil
	case "boolean":
		return d.IntN(2) == 0
	case "integer":
		return int64(d.drawNumber(schema, 1))
	case "number":
		return d.drawNumber(schema, 0.001)
	case "string":
		return d.drawText(schema)
	case "array":
		return d.drawList(schema)
	}
	return d.drawObject(schema, 0.5)
}

// drawNumber returns a random number that a schema permits: a bound, or a number near the lower bound. step is
// the distance that it keeps from an exclusive bound.
func (d *randomSchemaValues) drawNumber(schema testrig.JSONFields, step float64) float64 {
	low := schemaNumber(schema, "minimum", schemaNumber(schema, "exclusiveMinimum", -1e6))
	high := min(schemaNumber(schema, "maximum", 1e6), 1<<53)
	if schema["exclusiveMinimum"] != nil {
		low += step
	}
	few := math.Min(high, low+20)
	return randomElement(d, []float64{low, high, math.Floor(few), math.Floor((low + few) / 2)})
}

func (d *randomSchemaValues) drawText(schema testrig.JSONFields) string {
	if schema["format"] == "date-time" {
		instant := time.Date(1971+d.IntN(200), 1, 1+d.IntN(365), d.IntN(24), d.IntN(60), d.IntN(60), d.IntN(1e9), time.UTC)
		return instant.In(time.FixedZone("", 900*(d.IntN(96)-48))).Format(time.RFC3339Nano)
	}
	low, high := int(schemaNumber(schema, "minLength", 0)), int(schemaNumber(schema, "maxLength", 200))
	pattern, ok := schema["pattern"].(string)
	if !ok {
		pattern = `^[a-z é]*$`
		low, high = max(low, d.IntN(2)), min(high, 20)
	}
	if d.textGeneratorsByPattern[pattern] == nil {
		d.textGeneratorsByPattern[pattern] = rapid.StringMatching(pattern)
	}
	for range 50 {
		if text := d.textGeneratorsByPattern[pattern].Example(d.Int()); len(text) >= low && len(text) <= high {
			return text
		}
	}
	return strings.Repeat("a", low)
}

func (d *randomSchemaValues) drawList(schema testrig.JSONFields) any {
	items, _ := schema["items"].(map[string]any)
	low := schemaNumber(schema, "minItems", 0)
	n := int(low) + d.IntN(int(min(4, schemaNumber(schema, "maxItems", 4)-low+1)))
	first, _ := schema["prefixItems"].([]any)
	list := []any{}
	for i := range n {
		itemSchema := items
		if i < len(first) {
			itemSchema = first[i].(map[string]any)
		}
		list = append(list, d.drawValue(itemSchema))
	}
	return list
}

// commonParameterValues lists common values of parameters whose format the schema does not describe.
var commonParameterValues = map[string][]any{
	"cron": {"0 3 * * *", "@hourly", "@every 90s"}, "tz": {"UTC", "Europe/Berlin"},
	"id": {"a", "b", 1}, "name": {"a", "b"},
	"key": {"workers", "@db", "priority"},
}

// drawObject returns a random object. It contains each optional member of the schema with the probability
// optionalProbability.
func (d *randomSchemaValues) drawObject(schema testrig.JSONFields, optionalProbability float64) testrig.JSONFields {
	v := testrig.JSONFields{}
	required, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if slices.Contains(required, any(name)) || d.Float64() < optionalProbability {
			v[name] = d.drawValue(properties[name].(map[string]any))
			if list := commonParameterValues[name]; list != nil && d.IntN(4) > 0 {
				v[name] = randomElement(d, list)
			}
		}
	}
	if entries, ok := schema["additionalProperties"].(map[string]any); ok {
		names, _ := schema["propertyNames"].(map[string]any)
		if names == nil {
			names = testrig.JSONFields{}
		}
		for range max(int(schemaNumber(schema, "minProperties", 0)), d.IntN(3)) {
			v[d.drawText(names)] = d.drawValue(entries)
		}
	}
	return v
}

// drawPermittedParams returns random parameters that the schema permits. It returns false if it finds none.
func (d *randomSchemaValues) drawPermittedParams(schema testrig.JSONFields,
	compiled *jsonschema.Schema) (testrig.JSONFields, bool) {
	for i := range 3000 {
		v := d.drawObject(schema, []float64{0, 0.03, 0.1, 0.3}[i%4])
		if schemaPermits(compiled, v) {
			return v, true
		}
	}
	return nil, false
}

func schemaPermits(schema *jsonschema.Schema, v any) bool {
	raw, err := json.Marshal(v)
	return err == nil && validateJSON(schema, raw) == nil
}

// drawForbiddenParams changes parameters until the schema forbids them. It returns false if it does not succeed.
func (d *randomSchemaValues) drawForbiddenParams(schema testrig.JSONFields, compiled *jsonschema.Schema,
	params testrig.JSONFields) (testrig.JSONFields,
	bool) {
	properties, _ := schema["properties"].(map[string]any)
	names := slices.Sorted(maps.Keys(properties))
	for range 100 {
		changed := maps.Clone(params)
		switch {
		case len(names) == 0 || d.IntN(12) == 0:
			changed["nosuch"] = 1
		case d.IntN(4) == 0 && len(changed) > 0:
			delete(changed, randomElement(d, slices.Sorted(maps.Keys(changed))))
		case d.IntN(3) == 0:
			name := randomElement(d, names)
			changed[name] = d.drawValue(properties[name].(map[string]any))
		default:
			name := randomElement(d, names)
			changed[name] = d.drawInvalidValue(properties[name].(map[string]any))
		}
		if !schemaPermits(compiled, changed) {
			return changed, true
		}
	}
	return nil, false
}

// drawInvalidValue returns a random value that the schema probably forbids.
func (d *randomSchemaValues) drawInvalidValue(schema testrig.JSONFields) any {
	list := []any{
		nil, true, -1, 1.5, "", "!", "a b", "a\x00b", "é=é", "1x", strings.Repeat("x", 300),
		[]any{}, []any{nil}, []any{"", "!"}, testrig.JSONFields{}, testrig.JSONFields{"": ""}, testrig.JSONFields{"a=b": "c"},
		testrig.JSONFields{"a": 1.5},
	}
	for name, step := range map[string]float64{"minimum": -1, "maximum": 1, "exclusiveMinimum": 0} {
		if n, ok := schema[name].(float64); ok && n < 1<<53 {
			list = append(list, n+step)
		}
	}
	return randomElement(d, list)
}

// rulesMissingFromSchemas lists errors that a service may return although the schema permits the request, because
// JSON Schema cannot express the rule. field is the field in the error; "" matches any field. message is a
// regular expression for the text of the error.
var rulesMissingFromSchemas = []struct{ field, message, reason string }{
	{"", "^(is )?too (long|short|large|small)|^must be (at least|between)|is not (between|above)|is too " +
		"(large|small|long|short)",
		"bounds of a duration or a size that is a text"},
	{"", `^works only with field ("unique"|env_secret)|^no command given;`,
		"an edited job may have the other field"},
	{"user", "there is no user|must be the name of a user", "accounts of the system"},
	{"tz", "there is no time zone", "time zones of the system"},
	{"cron", "", "the grammar of cron lines, and dates that never come"},
	{"jitter", "is longer than|cannot be combined with @reboot", "the time between two occurrences"},
	{"resources", "there is no resource|^the job needs .* units", "resources of the settings"},
	{"on", "^(this|no node of this) queue", "nodes of the queue"},
	{"depends_on", "there is no job|^names .* twice$|^a job cannot depend on itself$|^job .* is listed twice",
		"jobs that exist; the same job in two forms"},
	{"lock", "^the shared key @.* has no limit|^the limit of the shared key @", "rules of shared keys"},
	{"rate_limit", "^the shared key @.* has no limit|^the limit of the shared key @", "rules of shared keys"},
	{"jobs", "^0 jobs given; a request may have 1 to 1000$", "whether earlier requests of the batch had jobs"},
	{"batch", `selects only your own jobs, but the parameter "user" names another user`, "who sends the request"},
	{"until", "is in the past", "the time"},
	{"env_secret", `is also set in field "env"`, "names of two maps"},
	{"", "unknown setting", "names of settings"},
	{"name", "", "hooks of the settings"},
}

// methodsWithoutRandomRequests lists the methods to which the test sends no random requests, with the reasons.
var methodsWithoutRandomRequests = map[string]string{
	"service.stop": "ends the service",
	"web.start":    "listens anywhere; which addresses are free, and need TLS, the schema does not say",
	"config.set":   "each setting accepts different values",
}

// A service refuses a request as invalid exactly if the schema of the method forbids the request.
func TestServiceAcceptsWhatSchemasPermit(t *testing.T) {
	testrig.SkipIfShort(t)
	idle := testrig.StartQueue(t, "--workers", "0") // this queue has jobs, but no worker runs them
	// This queue has no jobs. Methods that change the whole service are sent to its service.
	emptyQueue := testrig.NewHarness(t, "")
	emptyQueue.StartService("--workers", "0")
	compiledAll := schemasByMethod(idle)
	var list []struct {
		Method string
		Params testrig.JSONFields
	}
	if err := json.Unmarshal([]byte(idle.MustRunCLI("schema", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	for i, m := range list {
		if methodsWithoutRandomRequests[m.Method] != "" {
			continue
		}
		q := idle
		if strings.HasPrefix(m.Method, "worker.") || strings.HasPrefix(m.Method, "config.") || m.Method == "reload" {
			q = emptyQueue
		}
		d, s := newRandomValues(uint64(i)), compiledAll[m.Method].params
		n := 10
		if strings.HasPrefix(m.Method, "enqueue") || m.Method == "schedule.add" || m.Method == "edit" {
			n = 40
		}
		for range n {
			v, ok := d.drawPermittedParams(m.Params, s)
			if !ok {
				t.Fatalf("%s: no parameters found that the schema permits", m.Method)
			}
			if e := requestAndGetError(q, m.Method, v); e != nil && e.Data.Code == "invalid" &&
				!isExpectedRefusal(e.Data.Field, e.Message) {
				t.Errorf("%s: the schema permits %s, but the service says: %s: %s", m.Method, truncatedJSON(v),
					e.Data.Field, e.Message)
			}
			if v, ok = d.drawForbiddenParams(m.Params, s, v); !ok {
				continue
			}
			if e := requestAndGetError(q, m.Method, v); e == nil || e.Data.Code != "invalid" {
				t.Errorf("%s: the schema forbids %s, but the service says: %+v", m.Method, truncatedJSON(v), e)
			}
		}
	}
}

// isExpectedRefusal reports whether every fault in an error message is listed in rulesMissingFromSchemas.
func isExpectedRefusal(errorField, message string) bool {
	for next := ""; ; errorField, message = next, message[strings.Index(message, "; "+next+": ")+len("; "+next+": "):] {
		first := message
		found := nextInvalidFieldIndexes(message)
		if found != nil {
			first, next = message[:found[0]], message[found[2]:found[3]]
		}
		ok := slices.ContainsFunc(rulesMissingFromSchemas, func(r struct{ field, message, reason string }) bool {
			return (r.field == "" || r.field == errorField) && regexp.MustCompile(r.message).MatchString(first)
		})
		if !ok || found == nil {
			return ok
		}
	}
}

// nextInvalidFieldPattern matches the start of a further fault in an error message. Its group is the field at fault.
var nextInvalidFieldPattern = regexp.MustCompile(`; ([a-z_]+): `)

// nextInvalidFieldIndexes finds the next fault in an error message that lists several faults. It returns the indexes of
// the fault and of its field, as FindStringSubmatchIndex does, or nil if there is no further fault.
func nextInvalidFieldIndexes(message string) []int {
	for _, found := range nextInvalidFieldPattern.FindAllStringSubmatchIndex(message, -1) {
		// The words "see" and "example" introduce a command, not a field.
		if word := message[found[2]:found[3]]; word != "see" && word != "example" {
			return found
		}
	}
	return nil
}

// truncatedJSON returns the first 600 characters of a value as JSON.
func truncatedJSON(v any) string {
	raw, _ := json.Marshal(v)
	return fmt.Sprintf("%.600s", raw)
}

// wireError is the error object in a response.
type wireError struct {
	Message string
	Data    struct{ Code, Field string }
}

// requestAndGetError sends a request and returns the error in the reply. It returns nil if the request succeeds, or
// if no reply arrives within a short time because the request waits for something.
func requestAndGetError(q *testrig.Harness, method string, params testrig.JSONFields) *wireError {
	q.Helper()
	w := q.DialService()
	defer w.Close()
	w.LastRequestID++
	line, err := json.Marshal(testrig.JSONFields{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		q.Fatal(err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		q.Fatal(err)
	}
	mayWait := params["follow"] == true || params["wait"] == true || method == "wait" || method == "worker.stop"
	for {
		timeout := 20 * time.Second
		if mayWait {
			timeout = 100 * time.Millisecond
		}
		w.SetReadDeadline(time.Now().Add(timeout))
		line, err := w.Reader.ReadBytes('\n')
		var response struct {
			Method string
			Error  *wireError
		}
		switch {
		case err != nil && mayWait && errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			q.Fatalf("%s %s: %v", method, truncatedJSON(params), err)
		}
		if err := json.Unmarshal(line, &response); err != nil {
			q.Fatal(err)
		}
		if response.Method == "" {
			return response.Error
		}
	}
}
