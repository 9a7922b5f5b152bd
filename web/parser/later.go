package main

import (
	"bytes"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// places maps the positions of mvdan/sh 3.6 to those of 3.14.
//
// Later versions count every byte of a line, and take a line end of two characters for one everywhere.
type places struct {
	source  []byte
	plain   []byte       // source with "\n" for "\r\n"
	returns []int        // offsets in plain of the line ends that were two characters
	lines   []int        // offsets in source at which lines start
	ends    map[int]bool // offsets in plain at which literals end
	masked  bool         // each bracket in plain is a '['
}

func placesOf(source []byte) places {
	found := places{source: source, plain: source, lines: []int{0}}
	if bytes.Contains(source, []byte("\r\n")) {
		found.plain = make([]byte, 0, len(source))
	}
	for place, character := range source {
		if character == '\n' {
			found.lines = append(found.lines, place+1)
		}
		if len(found.plain) == len(source) && &found.plain[0] == &source[0] {
			continue
		}
		if character == '\r' && place+1 < len(source) && source[place+1] == '\n' {
			found.returns = append(found.returns, len(found.plain))
		} else {
			found.plain = append(found.plain, character)
		}
	}
	return found
}

const maxColumn = 1<<14 - 1 // syntax.Pos has no room for more: 0 then

// later returns a position's offset, line and column, in bytes.
func (places places) later(position syntax.Pos) (offset, line, column int) {
	plain := int(position.Offset())
	offset = plain + sort.SearchInts(places.returns, plain+1)
	line, column = int(position.Line()), int(position.Col())
	if line == 0 || line > len(places.lines) {
		return offset, line, column
	}
	start := places.lines[line-1]
	counted := offset - start + 1
	if continued := []byte("\\\r\n"); bytes.HasSuffix(places.source[:start], continued) &&
		!bytes.HasSuffix(places.source[:start-len(continued)], continued[:1]) {
		counted++ // they take the line end for two characters of this line
	}
	if places.isContinued(plain) {
		// the parser looks at the backslash, and has read the line end
		if places.source[offset-1] == '\r' {
			offset--
		}
		counted--
	} else if places.ends != nil && !places.ends[plain] && offset > 0 && places.isTwoCharacters(offset) {
		// the end of a word such as "fi", which is reckoned from its start
		offset--
		counted--
	}
	if counted > column { // else the end of the text, which both count twice behind a backslash
		column = counted
	}
	if column > maxColumn {
		column = 0
	}
	return offset, line, column
}

// isTwoCharacters tells the second one of a line end.
func (places places) isTwoCharacters(offset int) bool {
	return offset < len(places.source) && places.source[offset] == '\n' && places.source[offset-1] == '\r'
}

// isContinued tells a line end behind one backslash.
func (places places) isContinued(place int) bool {
	text := places.plain
	return 0 < place && place < len(text) && text[place] == '\n' && text[place-1] == '\\' &&
		(place < 2 || text[place-2] != '\\')
}

func (places places) text(position syntax.Pos) string {
	_, line, column := places.later(position)
	number := func(number int) string {
		if number == 0 {
			return "?"
		}
		return strconv.Itoa(number)
	}
	return number(line) + ":" + number(column)
}

// bracket stands for a "[" inside a word of an array, which the parser would take for the start of "[key]=value".
const bracket = '\x02'

const parsedBytes = 64 << 20 // in total, for one text with such brackets

// parsed returns the tree of the text, or the error of later versions.
func (places *places) parsed() (*syntax.File, string) {
	if places.masked = bytes.IndexByte(places.source, bracket) < 0; places.masked {
		places.plain = append([]byte(nil), places.plain...)
	}
	for left := parsedBytes; ; left -= len(places.plain) {
		parser := syntax.NewParser(syntax.KeepComments(true), syntax.Variant(syntax.LangBash))
		file, err := parser.Parse(bytes.NewReader(places.plain), "")
		place := places.wrongBracket(file, err)
		inside := left > 0 && 0 < place && place < len(places.plain) && places.plain[place] == '[' &&
			places.masked && !strings.ContainsRune(" \t\n(", rune(places.plain[place-1]))
		switch {
		case inside:
			places.plain[place] = bracket
		case err != nil:
			return nil, places.laterError(err)
		default:
			return file, ""
		}
	}
}

// wrongBracket returns the place of a bracket that may be one inside a word, 0 for none.
func (places places) wrongBracket(file *syntax.File, err error) (place int) {
	if err, is := err.(syntax.ParseError); is {
		place = min(int(err.Pos.Offset()), len(places.plain))
		if strings.HasSuffix(err.Text, `"[x]" must be followed by =`) {
			return place
		}
		// an expression that none is: x=[a://b]
		before := places.plain[:min(place+1, len(places.plain))]
		if at := bytes.LastIndex(before, []byte("=[")); at >= 0 && !bytes.ContainsAny(before[at:place], " \t\n") {
			return at + 1
		}
	}
	if err != nil {
		return 0
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		if array, is := node.(*syntax.ArrayExpr); is && place == 0 {
			for number, element := range array.Elems {
				if number == 0 || element.Index == nil {
					continue
				}
				if start := int(element.Index.Pos().Offset()) - 1; start == int(end(array.Elems[number-1]).Offset()) {
					place = start
				}
			}
		}
		return place == 0
	})
	return place
}

// prepare gives loops with braces an end that is right, theirs and that of all that ends with them, and starts a new
// literal at a bracket inside a word, as later versions do.
func (places *places) prepare(file *syntax.File) {
	places.ends = map[int]bool{}
	syntax.Walk(file, func(node syntax.Node) bool {
		switch node := node.(type) {
		case *syntax.ForClause:
			if node.Braces {
				node.DonePos = moved(node.DonePos, len("}")-len("done"))
			}
		case *syntax.Lit:
			places.ends[int(node.ValueEnd.Offset())] = true
		case *syntax.Word:
			if places.masked {
				node.Parts = divided(node.Parts)
			}
		}
		return true
	})
}

func divided(parts []syntax.WordPart) []syntax.WordPart {
	for place, part := range parts {
		literal, is := part.(*syntax.Lit)
		if !is {
			continue
		}
		if at := strings.IndexByte(literal.Value, bracket); at > 0 {
			middle := moved(literal.ValuePos, at)
			first := &syntax.Lit{ValuePos: literal.ValuePos, ValueEnd: middle, Value: literal.Value[:at]}
			second := &syntax.Lit{ValuePos: middle, ValueEnd: literal.ValueEnd, Value: literal.Value[at:]}
			rest := divided(parts[place+1:])
			return append(append(append([]syntax.WordPart(nil), parts[:place]...), first, second), rest...)
		}
	}
	return parts
}

// end returns the end of a node; the parser's own is wrong for some.
func end(node syntax.Node) syntax.Pos {
	if element, is := node.(*syntax.ArrayElem); is && element.Value == nil {
		return moved(element.Index.End(), len("]="))
	}
	return node.End()
}

func moved(position syntax.Pos, bytes int) syntax.Pos {
	return syntax.NewPos(uint(int(position.Offset())+bytes), position.Line(), uint(max(int(position.Col())+bytes, 0)))
}

// withLaterFields takes away what a node has in addition, and what prepare has done.
func withLaterFields(node syntax.Node) {
	switch node := node.(type) {
	case *syntax.ForClause:
		if node.Braces {
			node.DonePos = moved(node.DonePos, len("done")-len("}"))
		}
	case *syntax.ParamExp:
		if node.Short && node.Index != nil {
			node.Dollar = syntax.Pos{}
		}
	}
}

// refuse panics where later versions find an error.
func (places places) refuse(node syntax.Node) {
	switch node := node.(type) {
	case *syntax.Block:
		places.refuseEmpty(node.Stmts, node.Lbrace, "{")
	case *syntax.Subshell:
		places.refuseEmpty(node.Stmts, node.Lparen, "(")
	case *syntax.IfClause:
		if !node.ThenPos.IsValid() {
			places.refuseEmpty(node.Then, node.Position, "else")
			break
		}
		places.refuseEmpty(node.Cond, node.Position, places.word(node.Position))
		places.refuseEmpty(node.Then, node.ThenPos, "then")
	case *syntax.WhileClause:
		places.refuseEmpty(node.Cond, node.WhilePos, places.word(node.WhilePos))
		places.refuseEmpty(node.Do, node.DoPos, "do")
	case *syntax.ForClause:
		places.refuseEmpty(node.Do, node.DoPos, places.word(node.DoPos))
	}
}

func (places places) refuseEmpty(statements []*syntax.Stmt, start syntax.Pos, word string) {
	if len(statements) == 0 {
		panic(refusal(places.text(start) + ": " + quoted(word) + " must be followed by a statement list"))
	}
}

// word returns the reserved word, or the brace, at a position.
func (places places) word(position syntax.Pos) string {
	rest := places.plain[position.Offset():]
	length := 0
	for length < len(rest) && 'a' <= rest[length] && rest[length] <= 'z' {
		length++
	}
	return string(rest[:max(length, 1)])
}

func max(a, b int) int {
	if a < b {
		return b
	}
	return a
}

// refuseFraction panics for a literal like 1.5 or data.x in arithmetic.
func (places places) refuseFraction(expression syntax.ArithmExpr) {
	word, is := expression.(*syntax.Word)
	if !is {
		return
	}
	for _, part := range word.Parts {
		if literal, is := part.(*syntax.Lit); is {
			if at := strings.IndexByte(literal.Value, '.'); at >= 0 {
				place := places.text(moved(literal.Pos(), at))
				panic(refusal(place + ": floating point arithmetic is a zsh feature" + triedAs))
			}
		}
	}
}

const triedAs = "; tried parsing as bash"

func (places places) laterError(err error) string {
	switch err := err.(type) {
	case syntax.ParseError:
		if err.Text == "invalid UTF-8 encoding" {
			return err.Error() // at a place of its own reckoning
		}
		position, text := places.laterProblem(err.Pos, err.Text)
		return places.text(position) + ": " + laterMessage(text)
	case syntax.LangError:
		err.Filename = ""
		_, message, _ := strings.Cut(err.Error(), ": ")
		return places.text(err.Pos) + ": " + message + triedAs
	}
	return err.Error()
}

// laterProblem returns the place and the text of an error that later versions see elsewhere, or in another piece.
func (places places) laterProblem(position syntax.Pos, text string) (syntax.Pos, string) {
	const operator = "not a valid parameter expansion operator: "
	rest := places.plain[min(int(position.Offset()), len(places.plain)):]
	first := func(rest []byte) string {
		character, _ := utf8.DecodeRune(rest)
		return string(character)
	}
	switch {
	case strings.HasSuffix(text, "without matching ( with )") && bytes.HasPrefix(rest, []byte("$(")):
		return position, strings.Replace(text, "matching (", "matching $(", 1)
	case strings.HasPrefix(text, "not a valid arithmetic operator: "):
		if at := strings.IndexByte(text, '.'); at > 0 {
			return position, text[:at]
		}
	case strings.HasPrefix(text, operator) && len(rest) > 0:
		return position, operator + first(rest)
	case text == "invalid parameter name":
		if length := nameLength(rest); 0 < length && length < len(rest) {
			return moved(position, length), operator + first(rest[length:])
		}
	case text == "LitWord cannot be followed by a word" && position.Offset() > 0:
		before := moved(position, -1)
		return before, operator + first(places.plain[before.Offset():])
	case text == "parameter expansion requires a literal":
		if bytes.HasPrefix(rest, []byte("${")) {
			position = moved(position, len("${"))
		}
		return position, "invalid parameter name"
	}
	return position, text
}

func nameLength(text []byte) int {
	for length, character := range text {
		if character != '_' && (character < '0' || character > '9') &&
			(character|0x20 < 'a' || character|0x20 > 'z') {
			return length
		}
	}
	return len(text)
}

func min(a, b int) int {
	if b < a {
		return b
	}
	return a
}

// messages have a % where later versions put a piece of the script in backquotes.
var messages = []string{
	"a command can only contain words and redirects; encountered %",
	"expected %, % or % after complex expr",
	"not a valid arithmetic operator: %",
	"not a valid parameter expansion operator: %",
	"not a valid test operator: %",
	"reached % without closing quote %",
	"reached % without matching % with %",
	"unclosed here-document '%'",
	"% can only be used in a case clause",
	"% can only be used in a loop",
	"% can only be used in an if",
	"% can only be used in full statements",
	"% can only be used to close a block",
	"% can only be used to close a subshell",
	"% can only be used to close a test",
	"% can only be used to end a case",
	"% can only be used to end a loop",
	"% can only be used to end an if",
	"% can only be used to open an arithmetic cmd",
	"% can only immediately follow a statement",
	"% cannot be followed by a word",
	"% cannot form a statement alone",
	"% is not a valid start for a statement",
	"% is not a valid word",
	"% must be followed by %",
	"% must follow a name",
	"% must follow an expression",
	"% statement must end with %",
}

var reworded = map[string]string{
	"[ must follow a name":                   "`[` must follow a name like a[i]",
	"case patterns must be separated with |": "case patterns must be separated with `|`",
	"ternary operator missing : after ?":     "ternary operator missing `:` after `?`",
	"ternary operator missing ? before :":    "ternary operator missing `?` before `:`",
}

// kinds are no pieces of a script.
var kinds = map[string]bool{
	"EOF": true, "Newl": true, "Lit": true, "LitWord": true, "LitRedir": true, "an expression": true, "a word": true,
	"a statement list": true, "a statement": true, "a literal": true, "a name": true, "names or assignments": true,
}

func laterMessage(text string) string {
	if later, is := reworded[text]; is {
		return later
	}
	for _, message := range messages {
		if later, fits := filled(strings.Split(message, "%"), text); fits {
			for _, word := range []string{"in an if", "to end an if", "to end a case"} {
				if strings.HasSuffix(message, word) {
					last := strings.LastIndexByte(later, ' ') + 1
					later = later[:last] + quoted(later[last:])
				}
			}
			return later
		}
	}
	return text
}

// filled returns a text with the pieces between the constant ones quoted; false where it does not consist of them.
func filled(constant []string, text string) (string, bool) {
	rest, fits := strings.TrimPrefix(text, constant[0]), strings.HasPrefix(text, constant[0])
	later := strings.TrimSuffix(constant[0], "'")
	for place, next := range constant[1:] {
		at := strings.Index(rest, next)
		if place == len(constant)-2 {
			if at = len(rest) - len(next); !strings.HasSuffix(rest, next) {
				at = -1
			}
		}
		if !fits || at < 0 {
			return "", false
		}
		if piece := rest[:at]; next == "'" {
			later += "`" + piece + "`" // a here-document's, whatever its name
		} else {
			later += quoted(piece)
		}
		later += strings.TrimPrefix(next, "'")
		rest = rest[at+len(next):]
	}
	return later, fits
}

// quoted returns a piece of a script in backquotes.
func quoted(piece string) string {
	if piece == `"in", "do", ;, or a newline` {
		return "`in`, `do`, `;`, or a newline"
	}
	if kinds[piece] {
		return piece
	}
	if plain, err := strconv.Unquote(piece); err == nil && piece[0] == '"' {
		piece = plain
	}
	if strconv.CanBackquote(piece) {
		return "`" + piece + "`"
	}
	return strconv.Quote(piece)
}
