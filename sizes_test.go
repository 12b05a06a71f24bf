package queuectl

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxCodeSizeByKind contains the maximum sizes. testdata/sizes.tsv lists exceptions; a row of that file may be
// lowered or removed, but not raised or added.
var maxCodeSizeByKind = map[string]int{
	"interface": 15,   // methods, including those of embedded interfaces
	"struct":    25,   // fields
	"function":  70,   // lines of product code, including comments inside the function
	"package":   7000, // lines of product code
	"file":      500,  // lines
	"columns":   120,  // maximum per line; a tab counts as one. sizes.tsv contains the number of longer lines in a file
}

// structsWithoutFieldLimit contains structs that may have any number of fields, because they list the settings or the
// data of one object.
var structsWithoutFieldLimit = map[string]bool{
	"config.Settings": true, "queue.Spec": true, "queue.Job": true, "control.Spec": true, "control.Job": true,
}

// interfacesWithoutMethodLimit contains interfaces that consist of smaller interfaces. A composed interface may have
// any number of methods, because the sizes of the smaller interfaces are checked.
var interfacesWithoutMethodLimit = map[string]bool{"control.API": true, "store.Store": true, "store/rules.Tx": true}

var lowerRecordedSizesFlag = flag.Bool("lower", false, "lower the sizes in testdata/sizes.tsv to the present ones")

// No interface, struct, function, package, file or line exceeds maxCodeSizeByKind, unless testdata/sizes.tsv lists it
// with a larger size.
func TestCodeSizesStayWithinLimits(t *testing.T) {
	t.Parallel()
	const table = "testdata/sizes.tsv"
	measured := measureExcessiveSizes(t)
	raw, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		kindAndName, size, _ := cutAtLastSeparator(strings.TrimSpace(line), "\t")
		if listed[kindAndName], err = strconv.Atoi(size); err != nil {
			t.Fatalf("%s: %q does not end in a size", table, line)
		}
	}
	if *lowerRecordedSizesFlag {
		var out strings.Builder
		for _, name := range slices.Sorted(maps.Keys(listed)) {
			if listed[name] = min(listed[name], measured[name]); listed[name] == 0 {
				delete(listed, name)
				continue
			}
			fmt.Fprintf(&out, "%s\t%d\n", name, listed[name])
		}
		if err := os.WriteFile(table, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range measured {
		if allowed, isListed := listed[name]; !isListed {
			t.Errorf("%s: the size is %d; the limit is %d", name, size, maxCodeSizeByKind[strings.Split(name, "\t")[0]])
		} else if size > allowed {
			t.Errorf("%s: the size is %d; testdata/sizes.tsv allows at most %d", name, size, allowed)
		}
	}
	for name, size := range listed {
		if measured[name] == 0 {
			t.Errorf("%s: the size %d is in %s, but within the limit; run: go test . -run TestCodeSizesStayWithinLimits -lower",
				name, size, table)
		}
	}
}

// measureExcessiveSizes returns the sizes that exceed maxCodeSizeByKind. A key consists of the kind of the measured
// object, such as "function", a tab and the name of the object.
func measureExcessiveSizes(t *testing.T) map[string]int {
	t.Helper()
	sizes := map[string]int{}
	add := func(kind, name string, size int) {
		if size > maxCodeSizeByKind[kind] {
			sizes[kind+"\t"+name] = max(size, sizes[kind+"\t"+name])
		}
	}
	packages, methods := map[string]int{}, map[string]*ast.InterfaceType{}
	for file := range importsByGoFile(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(raw), "\n")
		add("file", file, len(lines)-1)
		wide := 0
		for _, line := range lines {
			if utf8.RuneCountInString(line) > maxCodeSizeByKind["columns"] {
				wide++
			}
		}
		if wide > 0 {
			sizes["columns\t"+file] = wide
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		dir := path.Dir(file)
		if !isTestCode(dir) {
			packages[dir] += len(lines) - 1
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, file, raw, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if !isTestCode(dir) {
					add("function", dir+"."+functionName(d), set.Position(d.End()).Line-set.Position(d.Pos()).Line+1)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					typ, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					switch of := typ.Type.(type) {
					case *ast.StructType:
						if !structsWithoutFieldLimit[dir+"."+typ.Name.Name] {
							add("struct", dir+"."+typ.Name.Name, countFields(of.Fields))
						}
					case *ast.InterfaceType:
						methods[dir+"."+typ.Name.Name] = of
					}
				}
			}
		}
	}
	for dir, lines := range packages {
		add("package", dir, lines)
	}
	for name := range methods {
		if !interfacesWithoutMethodLimit[name] {
			add("interface", name, countMethods(methods, name))
		}
	}
	return sizes
}

// countMethods returns the number of methods of an interface. Methods of embedded interfaces count if the embedded
// interface is in this module. The interface is named with its directory, such as "store.Store".
func countMethods(interfacesByName map[string]*ast.InterfaceType, interfaceName string) (methodCount int) {
	declared := interfacesByName[interfaceName]
	if declared == nil {
		return 0
	}
	for _, field := range declared.Methods.List {
		switch embedded := field.Type.(type) {
		case *ast.FuncType:
			methodCount += len(field.Names)
		case *ast.Ident:
			methodCount += countMethods(interfacesByName, path.Dir(interfaceName)+"/"+
				path.Base(strings.TrimSuffix(interfaceName, path.Ext(interfaceName)))+"."+embedded.Name)
		case *ast.SelectorExpr:
			for other := range interfacesByName {
				if strings.HasSuffix("/"+other, "/"+fmt.Sprint(embedded.X)+"."+embedded.Sel.Name) {
					methodCount += countMethods(interfacesByName, other)
				}
			}
		}
	}
	return methodCount
}

// countFields returns the number of fields of a struct. An embedded field counts as one.
func countFields(fields *ast.FieldList) (fieldCount int) {
	for _, field := range fields.List {
		fieldCount += max(len(field.Names), 1)
	}
	return fieldCount
}

func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	receiver := d.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	return fmt.Sprint(receiver) + "." + d.Name.Name
}

// isTestCode reports whether a directory contains tests, benchmarks or tools, which are not product code.
func isTestCode(dir string) bool {
	for _, prefix := range []string{"test", "internal/testrig", "internal/skip", "bench", "packaging/test",
		"store/storetest", "store/memstore"} {
		if dir == prefix || strings.HasPrefix(dir, prefix+"/") {
			return true
		}
	}
	return false
}

// cutAtLastSeparator splits s around the last sep. If s does not contain sep, found is false.
func cutAtLastSeparator(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
