package spec

import (
	"fmt"
	"strconv"
	"strings"
)

// Money is an amount in billionths of a US dollar: exact for every price per
// million tokens with up to three decimals.
type Money int64

// Dollar is one US dollar.
const Dollar Money = 1_000_000_000

// maxDollars bounds an amount; nine digits leave room to add a billion of them.
const maxDollars = 1_000_000_000

// ParseMoney reads an amount in US dollars, "2.50". Nothing is rounded: more
// than nine decimals are an error, and so is a sign or an exponent.
func ParseMoney(s string) (Money, error) {
	bad := func() (Money, error) { return 0, fmt.Errorf("%q is not an amount in US dollars like 2.50", cut(s, 40)) }
	whole, frac, point := strings.Cut(s, ".")
	if whole == "" || point && frac == "" || len(whole) > 10 || len(frac) > 9 {
		return bad()
	}
	for _, c := range whole + frac {
		if c < '0' || c > '9' {
			return bad()
		}
	}
	dollars, _ := strconv.ParseInt(whole, 10, 64)
	if dollars > maxDollars {
		return bad()
	}
	nano, _ := strconv.ParseInt((frac + "000000000")[:9], 10, 64)
	return Money(dollars)*Dollar + Money(nano), nil
}

// Decimal is the exact amount in dollars, "0.000243".
func (m Money) Decimal() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	s := fmt.Sprintf("%s%d.%09d", sign, m/Dollar, m%Dollar)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// String is the amount for people: at least two decimals, at most four,
// rounded up so that something never reads as nothing.
func (m Money) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	const step = Dollar / 10_000
	m = (m + step - 1) / step
	s := fmt.Sprintf("%s$%d.%04d", sign, m/10_000, m%10_000)
	return strings.TrimSuffix(s, "00")
}
