// TAP for the client in Go: check(name, got, wanted), done().
package main

import (
	"fmt"
	"os"
	"reflect"
)

var count, bad int

func check(name string, got, wanted interface{}) {
	count++
	words := "ok"
	if !reflect.DeepEqual(got, wanted) {
		words = "not ok"
		bad++
	}
	fmt.Printf("%s %d - %s\n", words, count, name)
	if words != "ok" {
		fmt.Printf("# got %v, wanted %v\n", got, wanted)
	}
}

func done() {
	fmt.Printf("1..%d\n", count)
	if bad > 0 {
		os.Exit(1)
	}
}
