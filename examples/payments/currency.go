package main

import (
	"fmt"
	"strings"
)

// currencies are the codes of ISO 4217 that are in use, by the number of digits
// of their minor unit.
var currencies = map[int]string{
	0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
	2: `AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN
		BZD CAD CDF CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP
		GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD
		KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN
		NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG
		SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH
		USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG`,
	3: "BHD IQD JOD KWD LYD OMR TND",
	4: "CLF UYW",
}

// minorDigits is the same, turned round: code to digits.
var minorDigits = func() map[string]int {
	m := map[string]int{}
	for digits, codes := range currencies {
		for code := range strings.FieldsSeq(codes) {
			m[code] = digits
		}
	}
	return m
}()

// money writes an amount of minor units as people read it: 1234567 KWD is
// 1,234.567.
func money(amount int64, currency string) string {
	digits := minorDigits[currency]
	s := fmt.Sprintf("%0*d", digits+1, amount)
	whole, part := s[:len(s)-digits], s[len(s)-digits:]
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if digits == 0 {
		return whole
	}
	return whole + "." + part
}
