package main

import (
	"reflect"
	"strconv"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

const maxTree = 24 << 20 // bytes of the tree, indented as shfmt does: limits.TREE of the package

// encoder writes a syntax tree as shfmt's typed JSON.
type encoder struct {
	places
	text   []byte
	spaces int // bytes of shfmt's line breaks and indentation
	depth  int
}

// refusal ends the encoding: the answer is its message.
type refusal string

func answer(source []byte) (text string) {
	places := placesOf(source)
	defer func() {
		if problem := recover(); problem != nil {
			message, is := problem.(refusal)
			if !is {
				panic(problem)
			}
			text = failure(string(message))
		}
	}()
	file, problem := places.parsed()
	if problem != "" {
		return failure(problem)
	}
	places.prepare(file)
	encoder := &encoder{places: places}
	encoder.write(`{"tree":`)
	encoder.value(reflect.ValueOf(file), true)
	encoder.write("}")
	return string(encoder.text)
}

func failure(message string) string {
	encoder := &encoder{}
	encoder.write(`{"error":`)
	encoder.string(message)
	encoder.write("}")
	return string(encoder.text)
}

func (encoder *encoder) write(text string) {
	encoder.text = append(encoder.text, text...)
}

// line counts the line break and indentation that shfmt prints before an entry.
func (encoder *encoder) line() {
	encoder.spaces += encoder.depth + 1
	if len(encoder.text)+encoder.spaces > maxTree {
		panic(refusal("a syntax tree that is too large"))
	}
}

// value writes a field's value. named: the type's name goes first, as in fields whose type is an interface.
func (encoder *encoder) value(value reflect.Value, named bool) {
	switch value.Kind() {
	case reflect.Ptr:
		encoder.value(value.Elem(), named)
	case reflect.Interface:
		encoder.value(value.Elem(), true)
	case reflect.Struct:
		encoder.object(value, named)
	case reflect.Slice:
		encoder.list(value)
	case reflect.Bool:
		encoder.write("true")
	case reflect.String:
		encoder.string(value.String())
	case reflect.Uint32: // an operator
		encoder.string(value.Interface().(interface{ String() string }).String())
	default:
		panic(value.Kind().String())
	}
}

func absent(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Slice:
		return value.Len() == 0
	case reflect.Struct:
		return false
	}
	return value.IsZero()
}

func (encoder *encoder) list(list reflect.Value) {
	encoder.write("[")
	encoder.depth++
	for place := 0; place < list.Len(); place++ {
		if place > 0 {
			encoder.write(",")
		}
		encoder.line()
		if item := list.Index(place); absent(item) {
			encoder.write("null")
		} else {
			encoder.value(item, false)
		}
	}
	encoder.depth--
	encoder.line()
	encoder.write("]")
}

var (
	positionType   = reflect.TypeOf(syntax.Pos{})
	arithmeticType = reflect.TypeOf((*syntax.ArithmExpr)(nil)).Elem()
)

func (encoder *encoder) object(object reflect.Value, named bool) {
	encoder.write("{")
	encoder.depth++
	first := true
	key := func(name string) {
		if !first {
			encoder.write(",")
		}
		first = false
		encoder.line()
		encoder.write(`"` + name + `":`)
	}
	position := func(name string, position syntax.Pos) {
		if position.IsValid() {
			key(name)
			encoder.position(position)
		}
	}
	if named {
		key("Type")
		encoder.string(object.Type().Name())
	}
	if node, is := object.Addr().Interface().(syntax.Node); is {
		encoder.refuse(node)
		position("Pos", node.Pos())
		position("End", end(node))
		withLaterFields(node)
	}
	for place := 0; place < object.NumField(); place++ {
		name, value := object.Type().Field(place).Name, object.Field(place)
		if value.Type() == positionType {
			position(name, value.Interface().(syntax.Pos))
		} else if !absent(value) {
			if value.Type() == arithmeticType {
				encoder.refuseFraction(value.Interface().(syntax.ArithmExpr))
			}
			key(name)
			encoder.value(value, false)
		}
	}
	encoder.depth--
	encoder.line()
	encoder.write("}")
}

func (encoder *encoder) position(position syntax.Pos) {
	offset, line, column := encoder.later(position)
	encoder.write(`{"Offset":` + strconv.Itoa(offset))
	encoder.write(`,"Line":` + strconv.Itoa(line))
	encoder.write(`,"Col":` + strconv.Itoa(column) + "}")
	encoder.spaces += 3 * (encoder.depth + 2)
	encoder.line()
}

const hexadecimal = "0123456789abcdef"

// string writes a text as Go's encoding/json does, which shfmt uses: bytes that are no UTF-8 become U+FFFD.
func (encoder *encoder) string(text string) {
	out := append(encoder.text, '"')
	for place := 0; place < len(text); {
		character := text[place]
		if character < utf8.RuneSelf {
			switch {
			case character == bracket && encoder.masked:
				out = append(out, '[')
			case character == '"' || character == '\\':
				out = append(out, '\\', character)
			case character < 0x20:
				out = append(out, '\\', 'u', '0', '0', hexadecimal[character>>4], hexadecimal[character&15])
			default:
				out = append(out, character)
			}
			place++
			continue
		}
		rune, size := utf8.DecodeRuneInString(text[place:])
		out = utf8.AppendRune(out, rune)
		place += size
	}
	encoder.text = append(out, '"')
}
