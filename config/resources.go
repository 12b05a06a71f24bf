package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Resource is a limited resource of the machine, such as its GPUs. Jobs reserve units of it, for example single
// GPUs.
type Resource struct {
	UnitIDs     []string // ids of the units; "0", "1", … if the settings contain only a count
	EnvVariable string   // environment variable of a job that contains the ids of its units; "" means none
}

// These constants limit what the table "resources" of the settings file may contain.
const (
	maxResources        = 64
	maxUnitsPerResource = 1024 // maximum number of units of one resource
	maxUnitIDBytes      = 128  // maximum length of the id of a unit, in bytes
)

// SetResources sets the setting "resources" from the table of the same name in a settings file. Each resource
// in the table has the field count or ids, and optionally env.
func (l *Layer) SetResources(table map[string]any) error {
	var entries []string
	for _, name := range slices.Sorted(maps.Keys(table)) {
		fields, isTable := table[name].(map[string]any)
		if !isTable {
			return queue.InvalidFieldError("resources."+name, "must be a table [resources.%s] with count or ids",
				queue.ClipForMessage(name))
		}
		text, err := formatResource(name, fields)
		if err != nil {
			return err
		}
		entries = append(entries, text)
	}
	if len(entries) == 0 {
		entries = []string{noneWord}
	}
	return l.Set("resources", strings.Join(entries, " "))
}

// formatResource converts one resource in a settings file to the text form that parseResources reads.
func formatResource(name string, fields map[string]any) (string, error) {
	text := ""
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		fieldPath := fmt.Sprintf("resources.%s.%s", queue.ClipForMessage(name), queue.ClipForMessage(key))
		switch v := fields[key].(type) {
		case int64:
			if key == "count" && fields["ids"] == nil {
				text = fmt.Sprint(v) + text
				continue
			}
		case []any:
			words := make([]string, len(v))
			for i := range v {
				if words[i] = fmt.Sprint(v[i]); strings.ContainsAny(words[i], ", \t\n") {
					return "", queue.InvalidFieldError(fieldPath, "%q contains a comma or a space; use an id without them",
						queue.ClipForMessage(words[i]))
				}
			}
			if key == "ids" && fields["count"] == nil {
				text = "[" + strings.Join(words, ",") + "]" + text
				continue
			}
		case string:
			if key == "env" {
				text += ">" + v
				continue
			}
		}
		return "", queue.InvalidFieldError(fieldPath,
			"not a valid field or value of a resource; use ids = [\"0\", \"1\"] or count = 2 (not both), "+
				"and optionally env = \"NAME\"")
	}
	return name + "=" + text, nil
}

// checkResources checks a list of resources, separated by spaces. Each has the form NAME=COUNT or NAME=[ID,ID].
// A resource may end in >VARIABLE, which names its environment variable.
func checkResources(resourcesText string) (string, error) {
	_, err := parseResources(resourcesText)
	return strings.Join(strings.Fields(resourcesText), " "), err
}

// ResourcesByName returns the resources of this machine.
func (s *Settings) ResourcesByName() map[string]Resource {
	return panicOnParseError(parseResources(s.Resources))
}

func parseResources(text string) (map[string]Resource, error) {
	resources := map[string]Resource{}
	if text == noneWord {
		return resources, nil
	}
	for entry := range strings.FieldsSeq(text) {
		name, rest, _ := strings.Cut(entry, "=")
		units, env, hasEnv := strings.Cut(rest, ">")
		_, isDuplicate := resources[name]
		switch {
		case isDuplicate:
			return nil, fmt.Errorf("%s is listed twice; list each resource once", name)
		case !queue.ValidID(name):
			return nil, fmt.Errorf("%q is not a valid resource name; write the names and amounts of all resources, like "+
				"gpu=2 license=5", queue.ClipForMessage(name))
		case hasEnv && (!isEnvVariableName(env) || strings.HasPrefix(env, "QUEUECTL_")):
			return nil, fmt.Errorf("%q is not a valid environment variable for the unit ids of resource %s; use "+
				"a name like GPU_IDS", queue.ClipForMessage(env), name)
		case len(resources) == maxResources:
			return nil, fmt.Errorf("too many resources; the maximum is %d", maxResources)
		}
		ids, err := parseUnitIDs(units)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		resources[name] = Resource{ids, env}
	}
	if len(resources) == 0 {
		return nil, fmt.Errorf("must not be empty; use none for no resources")
	}
	return resources, nil
}

// parseUnitIDs returns the ids of a resource's units. The text is the number of units, which then have the ids 0, 1, …,
// or a list of ids.
func parseUnitIDs(text string) (ids []string, err error) {
	list, listed := strings.CutPrefix(text, "[")
	if listed && strings.HasSuffix(list, "]") {
		ids = strings.Split(strings.TrimSuffix(list, "]"), ",")
		for i, id := range ids {
			if slices.Contains(ids[:i], id) {
				return nil, fmt.Errorf("unit %q is listed twice; list each unit once", queue.ClipForMessage(id))
			}
			if id == "" || len(id) > maxUnitIDBytes || strings.ContainsAny(id, "[]>=") {
				return nil, fmt.Errorf("%q is not a valid unit id; use up to %d bytes, but none of the characters []>=",
					queue.ClipForMessage(id), maxUnitIDBytes)
			}
		}
	} else {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is neither a number of units nor a list of unit ids; write it like 2 or [0,1]",
				queue.ClipForMessage(text))
		}
		for i := range min(n, maxUnitsPerResource+1) {
			ids = append(ids, strconv.Itoa(i))
		}
	}
	if len(ids) > maxUnitsPerResource {
		return nil, fmt.Errorf("too many units of one resource; the maximum is %d", maxUnitsPerResource)
	}
	return ids, nil
}

// isEnvVariableName reports whether the environment variable of a resource may have this name. It rejects PATH and
// HOME, which every job needs.
func isEnvVariableName(name string) bool {
	for i, c := range name {
		if c != '_' && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z') && !(i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return name != "" && name != "PATH" && name != "HOME"
}
