package control

import (
	"cmp"
	_ "embed"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ruleset describes the parameters of a method: their meaning, the values that they accept, and which of them may be
// combined. The server checks requests with the rulesets, and Schemas generates the published schemas from the same
// rulesets. So the server and the schemas always agree.
//
// For example, a field Name with the tag `rule:"queue,required"` rejects the parameters {} with "name:
// required; give the name of the queue", and adds {"required": ["name"]} to the schema. The first word of the
// tag names a constraint, a set of job fields, or value classes (see valueClass). parameters.txt describes the
// parameters.
type ruleset struct {
	params     []param
	conditions []paramCondition
}

// param describes one parameter. A request may leave out an optional parameter, but must not set it to null.
type param struct {
	name, doc string
	required  bool
	queue.Constraint
	allowedJobFields *jobFieldPolicy // job fields that an object of this parameter may contain; nil for other parameters
	valueClasses     []valueClass
}

// jobFieldPolicy says which job fields an object may contain. In the object, the value null means the default of a
// field.
type jobFieldPolicy struct {
	excludedFields    []string // fields that the object must not contain
	describesNewJob   bool     // the object describes a new job, not a change of a job
	editsExistingJobs bool     // the object changes existing jobs; it must not be empty
}

// valueClass is a set of values of a parameter, such as long lists of jobs. A paramCondition may name a class instead
// of a parameter. The class counts as given if the value of the parameter is in the class.
type valueClass struct {
	className string // name of the parameter, a colon and a word
	matches   func(v reflect.Value) bool
	schema    schema // the schema that accepts exactly these values
}

// param returns the parameter with this name, or nil if there is no such parameter.
func (r *ruleset) param(name string) *param {
	for i := range r.params {
		if r.params[i].name == name {
			return &r.params[i]
		}
	}
	return nil
}

// paramCondition is a condition on two sets of parameters, A and B. kind says whether a request may contain parameters
// of one set, of both or of neither. A parameter that is false or an empty list counts as not given. If a request
// violates the condition, the error names a parameter of set A: the first one that is given or, if none is given, the
// first one of the set.
type paramCondition struct {
	paramTypeNames       string // names of the Go types to whose fields the condition applies, separated by spaces
	kind                 *conditionKind
	paramSetA, paramSetB string // names, separated by spaces
	message              string // error message, without the parameter's name
}

// conditionKind is a kind of condition. accepts reports whether a request meets the condition. Its arguments say
// whether the request contains a parameter of set A and whether it contains one of set B. toSchema returns the schema
// of the requests that meet the condition. Its arguments are the schemas of requests with a parameter of set A, and
// with one of set B.
type conditionKind struct {
	isMet    func(a, b bool) bool
	toSchema func(a, b schema) schema
}

var (
	// requireSetA requires at least one parameter of set A.
	requireSetA = &conditionKind{func(a, _ bool) bool { return a }, func(a, _ schema) schema { return a }}
	// requireExactlyOneSet requires parameters of exactly one of the two sets. If a request has parameters of both sets,
	// the error names one parameter of each set and does not contain the condition's message.
	requireExactlyOneSet = &conditionKind{func(a, b bool) bool { return a != b },
		func(a, b schema) schema { return schema{"oneOf": []schema{a, b}} }}
	// forbidBothSets rejects a request with parameters of both sets.
	forbidBothSets = &conditionKind{func(a, b bool) bool { return !a || !b },
		func(a, b schema) schema { return schema{"not": schema{"allOf": []schema{a, b}}} }}
	// requireSetBWithA requires a parameter of set B if the request has one of set A.
	requireSetBWithA = &conditionKind{func(a, b bool) bool { return !a || b },
		func(a, b schema) schema { return schema{"anyOf": []schema{{"not": a}, b}} }}
)

// checkGivenParams returns an error if a required parameter is missing, or if the given parameters violate a
// condition.
func (r *ruleset) checkGivenParams(givenParams map[string]bool) error {
	for _, p := range r.params {
		if _, isGiven := givenParams[p.name]; p.required && !isGiven {
			return queue.InvalidFieldError(p.name, "required; give the %s", p.doc)
		}
	}
	firstGiven := func(names string) string { // returns the first given name, or "" if none is given
		for name := range strings.FieldsSeq(names) {
			if givenParams[name] {
				return name
			}
		}
		return ""
	}
	for _, g := range r.conditions {
		switch a, b := firstGiven(g.paramSetA), firstGiven(g.paramSetB); {
		case g.kind.isMet(a != "", b != ""):
		case g.kind == requireExactlyOneSet && a != "":
			return queue.InvalidFieldError(b, `cannot be combined with parameter %q; use one of them`, a)
		default:
			field, _, _ := strings.Cut(cmp.Or(a, g.paramSetA), " ")
			// A value class is named after its parameter, followed by a colon and a word.
			field, _, _ = strings.Cut(field, ":")
			return queue.InvalidFieldError(field, "%s", g.message)
		}
	}
	return nil
}

// checkValue returns an error if the parameter does not accept the value v.
func (p *param) checkValue(v reflect.Value) error {
	switch v := v.Interface().(type) {
	case Time:
		return nil
	case Duration:
		return p.CheckDuration(p.name, time.Duration(v))
	case *Duration:
		return p.CheckDuration(p.name, time.Duration(*v))
	case *RetentionAge:
		return nil // UnmarshalJSON has checked the value
	case []byte:
		return p.CheckText(p.name, string(v))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return p.checkValue(v.Elem())
	case reflect.Int, reflect.Int64:
		return p.CheckNumber(p.name, float64(v.Int()))
	case reflect.Float64:
		return p.CheckNumber(p.name, v.Float())
	case reflect.String:
		return p.CheckText(p.name, v.String())
	case reflect.Slice:
		if err := p.CheckEntryCount(p.name, v.Len()); err != nil || v.Type().Elem().Kind() != reflect.String {
			return err
		}
		for i := range v.Len() {
			if err := p.CheckEntry(p.name, v.Index(i).String()); err != nil {
				return err
			}
		}
	case reflect.Map:
		return p.CheckEntryCount(p.name, v.Len())
	}
	return nil
}

// rulesets holds the rulesets by the type of the parameters. rulesetOfType builds them at its first call. If they were
// built by the initializer of a variable, the linker would include all rulesets in the client, although only the
// service needs them.
var rulesets struct {
	once   sync.Once
	byType map[reflect.Type]*ruleset
}

// rulesetOfType returns the ruleset of a type that holds the parameters of a method.
func rulesetOfType(t reflect.Type) *ruleset {
	rulesets.once.Do(func() { rulesets.byType = buildRulesets() })
	return rulesets.byType[t]
}

func buildRulesets() map[reflect.Type]*ruleset {
	all, docs, rows := map[reflect.Type]*ruleset{}, paramDescriptionsByName(), paramConditionRows()
	constraints, fields, classes := constraintsByRule(), jobFieldPolicies(), valueClassesByRule()
	for _, m := range Methods() {
		t, r := m.paramsType, &ruleset{}
		for _, f := range reflect.VisibleFields(t) {
			name := jsonFieldName(f)
			if f.Anonymous || name == "-" {
				continue
			}
			rule, required := strings.CutSuffix(f.Tag.Get("rule"), ",required")
			p := param{name: name, doc: docs[t.Name()+"."+name], required: required, Constraint: constraints[rule],
				allowedJobFields: fields[rule], valueClasses: classes[rule]}
			switch {
			case !p.NotEmpty || p.ErrorMessageSuffix != "":
			case required:
				p.ErrorMessageSuffix = "; give the " + p.doc
			default:
				p.ErrorMessageSuffix = "; leave the parameter out"
			}
			r.params = append(r.params, p)
		}
		for _, c := range rows {
			if slices.Contains(strings.Fields(c.paramTypeNames), t.Name()) {
				r.conditions = append(r.conditions, c)
			}
		}
		all[t] = r
	}
	return all
}

// paramDescriptionsText contains the descriptions of parameters. Each section begins with a line of type names,
// followed by lines of the form NAME: DESCRIPTION.
//
//go:embed parameters.txt
var paramDescriptionsText string

// paramDescriptionsByName returns the descriptions of parameters. A key has the form TYPE.NAME.
func paramDescriptionsByName() map[string]string {
	docs := map[string]string{}
	var types []string
	for line := range strings.Lines(paramDescriptionsText) {
		name, doc, described := strings.Cut(strings.TrimSpace(line), ": ")
		if !described {
			types = strings.Fields(line)
			continue
		}
		for _, t := range types {
			docs[t+"."+name] = doc
		}
	}
	return docs
}
