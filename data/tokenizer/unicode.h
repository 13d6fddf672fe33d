// unicode.h: what tokenizers need to know of every code point: its class and case by Unicode 16.0.0, and what
// normalization form NFC needs, as Hugging Face tokenizers knows it. Written by dev/make_unicode.py; to change it,
// change that. The tables are packed in text, and unpacked when the program starts, in less than a millisecond.
// Defines: enum UnicodeClass, enum UnicodeCase, unicode_class, unicode_case; UNICODE_NFC_UNSETTLED, unicode_nfc_class,
// unicode_decomposed, unicode_composed.
#pragma once
#include "tokenizer.h"

// As the GPT-2 pre-tokenizer asks: letter (general category L*), number (N*), space (property White_Space), other.
enum UnicodeClass { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };
// As the patterns of tokenizers since o200k ask: upper case (Lu, Lt), lower case (Ll), marks (M).
enum UnicodeCase { CASE_NONE, CASE_UPPER, CASE_LOWER, CASE_MARK };

// ---- the tables, packed ---------------------------------------------------------------------------------------------
// Numbers have digits of base 32, lowest first, each but the last with 32 added, as characters from 40 on without \.
// Runs of code points: length << 3 | kind, of unicode_class_of and unicode_case_of; 7: upper and lower case by turns.
static const char unicode_packed_kinds[] =
  "P*S)X,3a+Z*a)].X)^.X*3X.3P*1a):05@210B0e-0e)M.0M*O65O,5h3`)=<5GG<=L)5<5DE<5<5W)O)5GG<5G?51?=I)<5<5<5O,5`,5<5G<5`6^)<"
  "5<=GD5O*M91f.Y,H)I+X+Q)a)101P,NDO)10?81E04X)40D040<5T,0T*f0?5DEO.M)?0G?5e4M4`00g)h5`+5O@0]181X)U2H*V3060>0>06H*b.H)I"
  ")P/g*P)b2V-Z*H)96b@01g)8_)9>0N)9Z*A81H,16Y/g.8Q>g*1X+Z*Q0V*9H)1868Y-N)1V*1F1V)X,Q.FH)b*P)I.0Y)H*V*Y2N.0V0Y5F1_,1g)Y*"
  ">8Z*0I,F0I*898Y-0b)01@I)861g)8>8F1H*6H)90A>8Z*98Z)81068F0Y)H)98Y-0b)090909860V)H)>8F@6a)I)01a)Z*>A6a*F0Q*0A0Y-0b)090"
  "Q)861N*0F0F81a+9>8Z*P*1_)0F0I*898Y-0b)090Q)861g)8>8Fa)FH)90A>8Z*01Z)X*610Y)@A0I)@90109@9@A@I+H)V)@F0N)81X)6X+R+P+V)I"
  "*0A0b-0I,861g)0F0N)a)>0A8189>8Z*H*c)01F0I*0A0b-0Y*0Q)861g)0F0N)a)>X)909>8Z*096H+N)Q*0A0Q2>1g)0F0N)1P)A6c)A>8c,0Y)0F0"
  "Y,@I.0Q*018b)@6H)_)060N*X)Z*8>P+I469g)P)b)N*0Z*a19010Q)0I.010Y*69V*18Q)010g)0Z*8I)H01a->X)J-060606H)>I*0I1H)N-0>Q)g*"
  "0N1P*6P6b2N-1Z*X)Y)N)I)F1F9g)AN)Q+N+16Z*N)8]104P)48f201EQZ*0I)8b)010I)8Q20I)8Q00I)8b)010I)8b+0Q60I)8b88FP*J-@I,H,]=8"
  "^)@Id,8Q,3Y.P)b:@BI*a)Y,N)P*b,Fa*Y,>H+Q+0A0>H+I5N0@1H)168Z*X)Z*P,F06Z*X)Q>a)Q)>Y061P)Y9X*b/0N+H)N+X*Z*Y/8Q)a*I3H)Y.X"
  ")c*P1b-V)H)Q5_*0V/86Z*X)Z*P+1H*g/P4V)b3V,I*@Z*P,V*H+FY/V+9Z*I3_+H+I1N-H*Z*@AZ*I18U*?P)e28DH,F0V-I)6Y)69F1P)M3b7U+1^0"
  "Q1N8`M)M*`@M*L*^)8])8M*L*M*L*^)8])8M*0404040?f)L*^+8M*L*M*L*M*L*U)0=T)05@E0=T)@M)8=L)H)M*T)P)E0=T)@d*P/;P)3a33H,218Z"
  ")P)1Z*X)Q+a4V0P,4H)485D=D504@T)X)404040L)05L)5I)58=<P)?EH)50c4?R)X^-J7X;Z-Xf,Z/Hd0L4M4G<=h)D5?5?U)9D5`@5X)O)F?P*28^1"
  "05P)58I6a)1a+6b-P*b)0b)0b)0b)0b)0b)0b)0b)0N0a31H]+3H)92P.R*_)0Q)8B9H)Y=8>8A0Y>0I)P)b20Y?@J)X*I0H4I,H0Z*X/J*0c+H0Z*a1"
  "c+HX*IX[)H8QKU-a8Y38QK*@I,Z*9H-`31N)0_*01O/9>Y9Z*>P1Q*8`+=`71M*W)`*18O)1O)=W-L)5T)5h+D5G?8?0505h)P-A?A5b)6A6I)6b-V)H"
  ")6@Z)X*I5H+>Y4_,X*Z*X)_,Y)@1096Z*I/N*8b-V+H+Q/@N)b3_+X+1Z*X)Q)6Y*Z*Q)0Q2_+P*A6I*>8Z*X)b-@1FY461F9>Q)>161H.A8b*V)8A>X"
  "*Y)8Y)8Y)P*b)0b)0f20I)U*1X)M<b0N*0>8Z*X)IQ`*H+b-H)Q4HIJ*Yd*8YBX1f)H+U)P)16Y*0Q+0Q)0109090ICP0bc*X,I88Y5H2I+H)N,H,N,H"
  "8Q)0bI)a,Z*a)].X)^.a*Q>@Y)8Y)8Y)8Aa0I+0Y.0b,090b+8Y+X0bFH+R3H+R6P,:PD6XH)Q/@Q4a+6c.H)I0J)P*I-2I*2P)Y1V)P)Y/8I1H)I*0R"
  ")X2L2M2Y;8Z*X)L1H)M1H)I2H*I5H+e*0e+0e)0<0f*0f+0f)0=@I5H+bU*P*Y-X*I*H.Y)0Y20Q*P9Y)810I309@18b-8J*b-8c)b/H*R*H4b,09P)R"
  ")Y-Z)H)Y.X9I6H):9J,8Z31F0>P)N)I)0A0Q/8FH)6R*a-Q/:0Q/BH0I*0I/>H)R)H,Y5X*Y-8J*b,P)J*Y,a-c)H<Q:a5e4P+f4a)Z)I1N)H*Z*X)Z*"
  "Y)]-@V)01^-X_)c/0Y20>@9H,Aa5N)Q/Z*1H*Y-g*J)a.Y,N)X2Q-c)H-b-P*FQ5g+a*Z/69>1P*N)Q3g*a)6P+Q.a)Z*X)FI1_+0Z*H)1>1H*b0681P"
  "*FI4_+I)H)N)0>Z*101H)J-a*Y,0Q.N+X)696X7b)010I)0b+0Y*a)b3N+P)Z*X)N)0I*898Y-0b)090Q)0>1g)8>8F81X)6P)Q)>8g)@V)a*Y*01810"
  "Y101V*06860N)0V)161P+>P/Q5_,I)P)Z*H)6AX/I4N-901H*Z*XQ)b3g)8V*a-I)>X0I4V,@1a*Z*X1b2V+1a)Z*X)J-H/b.8g+H)J+H)b)PV)I3g+P"
  "AL0M0c,H+I*818I*090I._)0>8N)161>H+Z*X9I*8b1g)8g)1016a.1_*I2g)1N)H*6H*1g*Y3N,@1X,Q:aY)Q0a+Z*X)Q*0Q1N*0N*1a+R/P)Y/8_-0"
  "_+P:b)090Y1_)@60>0g)16H*Z*X)Y)090I0V)0>0V)1a)Z*XU*b,N)P*>16Q+0Y0g)@V)P+Z*6P=1a+R-a2YN/XAcCP,IY)H[<Q@a+IT0H,6Y)g+X*bN"
  "GP)bY,PV^)Y/_,Z*XY5QV,a)b/0Z*X)b;0Z*X)Y/8V)a*I4g)P*I)H+Z*0c)0Q-P)b,HT+Q3@Z*XY)L0M0c-PBb:H)61g5a)N)Q+H89016a*>X+IgW)H"
  "*Y^1P2Y*abM*I)0b)090bP*a+1P/A81X+I)H*IK+HI:bBP)Q+@Q*a)Y*@>P]H)Z*XI,_38g-XO,V)@_)H*N*8g)X/N)HM)FaFJ-H+J-HCR.aI)].^.]."
  "f)0^,].^.40<848<8L)0L*M)050f)0f*].^.<0L)8L*0e)0^.<0L)0T)04@e)0^.].^.].^.].^.].^.].^.].M/8T.0U.0^)T.0U.0^)T.0U.0^)T.0"
  "U.0^)T.0U.0^)?8Z4HH,g5H)_4H*6X+6X-V)0g+H]0^*1M-X)^)P^)g)0V,8g)0>0V)P)Y7P06HDQ3@g)b)8Z*H)1PX*Y/6P,I3N)Z*X^+I/N)Z*X^)Y"
  "/>1Z*Pb+b)0I)090b+0QY)8R*g)P2]0^0g)1H)Z*aM.c60B0J)H;R30c+XX)I)0b.0901810Y*0I)0101X)1H)101010A0901810101010109018I)0b"
  ")0I)0I)010Y*0Q,P)A0Q)0Q,HY,R+aa=Z*XI0IaU2H0YVH)X)Y`)8YHU)X+QTc)a+Yd,XP;YO,Xa3bZN)P)IaH)H]cU-Ne)HLeW)";
// Runs of code points: length, class for NFC. 0 if a character starts a part that NFC changes independently of what is
// before it, and stays as it is if nothing follows that belongs to it; else its combining class, or
// UNICODE_NFC_UNSETTLED where that is 0.
static const char unicode_packed_classes[] =
  "H@(=N/)P/,e.)P/)a.-e.*R.,e.*R.3e.-),e.0N/)X/)N/+e.+N/*e.)(+N/,e.)N/)P/*e.)N/)Q/*R/)Q/*R/)Q/5N/,()h/1()h/0()h/d/(-N/Q"
  "0()e.,N/)e.+N/)g.)e..N/.e.*N/)e.*N/)g.)L/)N/)2)3)4)5)6)7)8)9):*;)<)=)>)()?)()@)A)()N/)e.)():P*(0N/)F)G)H)X)()C)D)E)F"
  ")G)H))I))J)*N/*e.-N/)e.*N/)e.8()K)M+(/N/*(,N/)e.)N/*(*N/)()e.*N/)e.K)()L)F()N/)e.*N/)e.*N/+e.)N/*e.)N/)e.+N/)e.)N/)e"
  ".)N/)e.)N/)e.*N/H-(/N/)e.)N/J)(,N/)(1N/)(+N/)(-N/S)(+e.a+(6N/)()e.*N/)e.*N/)e.+N/+e.)C)D)E+N/)e.*N/*e.-N/e)()/8()1+("
  ")N/)e.*N/+(0h/e*()/)()h/6()11()h/,(*h/)()h/[*()h/*()h/-()/8()13(+h/*()h/f*()/8()1V+()/)()h/6()10(*h/,(*h/H+()h/6()11"
  "()h/^+()1/()]*)d*M+()/-()h/2()1/(*h/O+()h/6()11()h/Z+()1,()h/7()h/a*(*O+)15(,S+T+(*_+6(,c+T*(*e.C()e.)()e.)()a.1()h/"
  "1()h/,()h/,()h/,()h/4()h//()I,)J,)h/)L,*h/)()h/)(,J,*()J,)h/*N/)1)(*N/3()h/1()h/,()h/,()h/,()h/4()h/4()e.O+()h/0()/)"
  "(*1Z*()e.[.(=h/Z)(Ch/c4(+N/]E()1G()1f,()12()N/S.()L/W,()g.)N/)e.d.()N/)e.O*()1<(0N/*()e.X)(-N/.e.*N/)e._+()/)h/6()1N"
  ")()N/)e./N/_)(*1c)()/3(*1K*()/a,(+N/)())-e.*N/,e.)N/)(/),()e..()N/+(*N/N.(*N/)e./N/)e.*N/)R/)_.)e.)R.M)N/-()N/)Q/)e."
  ")N/)e.Y3()h/)()h/)()h/)()h/)()h/)()h/)()h/f)()h/*()h/2()h/)()h//()h//()h//()h//()h/*(*h/1()h/)()h/)()h/*(*h/V.(*N/*)"
  ",N/+)*N/,()N/+(*))N/)e.)N/*),e.)N/^)()h/+(*h/f7(*h/Yf)()h/Z8(+N/U,()1H+(H)N/R9()c.)L/)P/)g.*H/Q+(*0]VE()N/,(2N/H)(*N"
  "/X*(*N/]0()1f-()1C(:N/b)(+e.M)()1h*()/4()1W/()N/)(*N/)e.*(*N/-(*N/)()N/])()1_/()1ZP;(V0h/*()h/)()h/*(2h/)()h/)()h/*("
  "*h/+(L*h/*(R+h/K*()h/)B)h/2(5h/)(-h/)()h/)(*h/)(*h/)(1h/Y>(/N//e.*N/UF()e.J/()e.^,(-N/Z])()e.)()N/P)()N/)))e.,()1M-("
  ")N/)e.hR)()1a)()1b)()1)/M*(+N/L)()h/3(*1g)()/T*()11()/R+()1)/Z-()/)1Y*()/)()h/6()11()h/6(/N/+(-N/U.()1+()/Q+()h/1()h"
  "/*()h/,()1)/S/()h/7()1)/g+()1_+()1)/[+()1[P)()1X^;(-)d)(/N/OS<())hM-(/h/*a.+)+()J/-a.0(0e.*(-N/*e.F(,N/5(.h/I,(+N/dU"
  "+(/N/)(9N/*(/N/)(*N/)(-N/MM*(/e.U+(.N/)/^^K*(g8h/JWID(";
// Code points with a decomposition, Hangul apart: the step from the one before << 1 | whether NFC composes it; then the
// steps (down: all bits inverted, sign lowest) of its one or two parts from those before.
static const char unicode_packed_pairs[] =
  "I4J,HX)+(*+(*+(*+(2+(,-,c)+,U*+(*+(*+(4+07+(*+(*+(4-21+*-+(*+(*+(*+(2/47+(*+(*+(4+05/8)+(*+(*+(*+(2+(,-,c)+,U*+(*+(*"
  "+(4+07+(*+(*+(4-21+*-+(*+(*+(*+(2/47+(*+(*+(4+05-(6+W+/+H*(+h),+H*(+h)L*+H*(+d)U*+H*(+h)*+H*(+h)2+H*(+h)2+H*(+f)(+H*"
  "(/f)7+H*(+h),+H*(+h)*+H*(+h)J*+H*(+h)`)+H*(+d);+H*(+h)0+H*(+h)*+H*(+h)H*+H*(+f)Q*+H*(/f)*+H*(+h)*+H*(+h),+H*(+h)L*+H"
  "*(+h)I*1*1+H*(+f)R*+H*(-f)S*+H*(+h)T*+H*(+h)^)+H*(3d)=+H*(+h)T*+H*(+h)^)+H*(1f)7+H*(+h),+H*(+h)2+H*(/b);+H*(+h)T*+H*"
  "(+h)^)+H*(+f)=+H*(+h)*+H*(+h)R*+H*(+h)^)+H*(+f)_)+H*(+h)^)+H*(/f)9+H*(+h)*+H*(+h),+H*(+h)0+H*(+h)*+H*(+h)c)+H*(+d)S*"
  "+H*(+d)(+H*(+h)4+*5+H*(+h)4+H*(+h)2+H*(M*^*F+H*(E[)(+H*(d)O+E+H*(+W)(+H*(+[)(+H*(+[)(+H*(+V.7+H*(+h)-+H*(+h)>+H*(+h)"
  "?+H*(-W+0+H*(+L<(+*(+I>(+H*(/f18+H*(+`)(+H*(+`)a)+H*(+_?O*+*(+O+8+_5(+WJ)(1M*=+H*(/Y))+H*(+V-*+H*(+f)(+H*(+C(+H*(+U3"
  "D+H*(+h),+H*(+`)++H*(+h),+H*(+`)++H*(+h),+H*(+[)++H*(+h),+H*(+b)++H*(+h),+H*(+b)++H*(+h),+H*(+K*R)+H*(+f)(+H*(/`*[)+"
  "H*(7U*1+H*(+`)H*+H*(+J/M*+H*(+I*(+H*(+S2.+H*(+gC-+*(+SE(+H*(c8VP)OX)**(,L)(*=JX)H+f,IX)<dO)(7c.JX)+ZV)(*[U)IX)+eU)JX"
  ")+,(+,(-4(-4(+0(+J*(^)I+6+@(+@5+0(+,(+,(+L)(^)K)6+@(+35+4(+0(3:(+(6b*N,7+(8-+51A63P)5++)+>4?=(I*H*(W)-3+(8-+51N*63`)"
  "5++)+>4Y)J+:+*(^,f-9+H*(ES*(+H*(+h),+H*(/^)++H*(/N2,+*(+M4(+H*(+f)(+H*(/f)/+H*(+h)0+H*(+[)(+H*(/]2(+*(+`3(+H*(+[*/+H"
  "*(+h)0+H*(+h).+H*(+`)-+H*(/`)(+H*([:aE_])+(*+J*(+I**+N*)^1_0(-O)(K)J)(UM)TM)XV)98(/.(P*d)(**(**(*2(*2(**(*:(*0(b.X1L"
  "0+(Z)H)S*^)**(,B(P-N0H0.4(N*K*(**(*2(.F(^6a9]9/(W)+(Z)H)S*^)**(W+H/_1U+P+Y)+*(+)Z)b/H0g/Y/Z/g/76(+(*-(O)+0N)h/a/Z.+*"
  "(+)Z)f0N1N/-(2+.1+-R)R>Z>XE<<(22(22(22(B^)+<J+M,,(,*J,@,*(:K,(L)J*V+<<(22(22(22(B^)+d.R1Z/IV-HV-VX--,(-,(-,(-,(10([*"
  "Z*(-,(/,(+*(-.(dS)IX5hH4+H*(+f)d)+H*(+h)a)+H*(+h)D+H*(+R.h*+H*(+M24+H*(+h)a)+H*(+h)D+H*(+h);+H*(+h)4+H*(+e2b*+*(+)*+"
  "*(+d4a*+H*(+h).+H*(+ND[*+*(+MF*+H*(+f)-+H*(+f).+H*(+h)a)+H*(+h)^)+H*(+h)g)+H*(+h)6+H*(+f),+H*(+T.f*+H*(+O2(+H*(+h)L*"
  "+H*(+h)D+H*(+f)C+H*(+]e6f)+*(+^g6c*+H*(+h)/+H*(+f)`*+H*(+h)4+H*(+h)a)+H*(+f)`)+H*(+h)a)+H*(+h)D+H*(+h)/+H*(+V.`*+H*("
  "+h)6+H*(+V-7+*(+)*+*(+b7(+H*(+h)4+H*(+d)(+H*(+h)a)+H*(+Xg6f)+*(+YH7c*+H*(+f)[*+H*(+h)a)+H*(+V6`)+*(+2(+*(+JX6(+*(+fH"
  "7(+H*(+h)a)+H*(+h)D+H*(+h)/+H*(+f)9+H*(+h)@+H*(+h)-+H*(+N7`*+*(+*6+*(+Q91+H*(+h)H*+H*(+f)M*+H*(+h)*+H*(+h)6+H*(+h))+"
  "H*(+h)a)+H*(+f)`)+H*(+h)*+H*(+f))+H*(+f)1+H*(+h)J*+H*(+h)D+H*(+K)(+@Y*+.,+,(-T8-3d;a)+H*(+h)[)+H*(+J.7+H*(+h))+H*(+h"
  "):+H*(+h)3+H*(+ed6)+*(+fb6)+*(+))+*(+):+*(+)3+*(+cb6.+*(+`M7c)+H*(+h)[)+H*(+h)3+H*(+R.++H*(+h))+H*(+h):+H*(+h)3+H*(+"
  "ee6)+*(+hN76+H*(+h)])+H*(+[)(+H*(+h)[)+H*(+R.7+H*(+h))+H*(+h):+H*(+h)3+H*(+Xf6)+*(+bZ6)+*(+))+*(+):+*(+)3+*(+)H*+*(+"
  "`<(+H*(+h)[)+H*(+];7+*(+))+*(+):+*(+)3+*(+)H*+*(+U=M*+H*(+h)N*+H*(+h)[)+H*(+h)3+H*(7X[)H)+(*+g]5O)+*(+)*+*(+)J,+*(+h"
  "_5f*+(*+V`5O)+*(+)*+*(+)J,+*(+O^5f*+(*+_^5O)+*(+)*+*(/``5L)+(*+Na5O)+*(+)*+*(/K_5L)+(*+Z_5O)+*(+)*+*(+)J,+*(+[a5f*+("
  "*+Jb5O)+*(+)*+*(+)J,+*(+h_5f*+(*+V`5O)+*(+)*+*(+)J,+*(+Wb5f*+(*+gb5O)+*(+)*+*(+)J,+*(+[`5f*+(*+Ja5O)+*(+)*+*(/Kc5L)+"
  "(*+Zc5O)+*(+)*+*(/Oa5L)+(*+_a5O)+*(+)*+*(+)J,+*(-`c5d*-Pd5O)-(*-(J,+ha5f*+(*+Vb5O)+*(+)*+*(+)J,+*(+Wd5f*+(*+gd5O)+*("
  "+)*+*(+)J,+*(+Wd5K,*1hW)+:HX)*7hW)+<HX)*9hW)+>HX)*;hW)+H)HX)*BhW)+5HX)*8hW)+/HX)*2hW)/L[5R])+*(+*(+*(+*(+*(+*(+*(+*("
  "+*(+*(+*(+*(+*(+*(+*(+J)(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+J+(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*(+*("
  "+*(+dd5f++(++gd5J,+fd5(+1(-2-+RH6.+QJ6f++(++(/*=hW)+>R]),X*Q])/IY)L])+aT7.+bd5(+9(-:-+gH6.+IK6Q,*AhW)+FHX)*ChW)+DR])"
  "+XJ6Q,+(*+(J,+SH6`++(++J)/*[+hW)/Z*L])+J)(+I+`++(++(/*EhW)-PO6HX)+(*+(J,+YK6`++(++4/*^)hW)+J)NY)+(*+0e*+4(+S*`++(++("
  "/*U)hW)+N)PY)+YW)O)*cU)hW)*QZ)(/aY7R])+Md5(+2(-1-+cJ6.+UM6Q,*M)hW)+c)HX)*[)hW)+])R])*QW)Q]).e]7(**(R:[M6(0d^)(*]/(h."
  "_T8X[)+,(O),(h)a+(+0(++(S+J+(32(/.(Y)X)(-,(`)V)(/6(/,(-.(W)^H9(-PJ9(?O)(+II9(+,(+TJ9(+*(/B(+*(/.(+*(7.(+*(/6(+*(/.(+"
  "*(O*_)(+4(+*(+,(K+f*(+*(+P)(+*(7H*(+*(+*(+*(a+N^.W[)**(Ld+`Z*X[)I`*e_*J_>-,(-,(-,(-,(-,(-,(-,(-,(-,(-,(-,(/.(-,(-,(7"
  "6(+(*-.)+(*-.)+(*-.)+(*-.)+(*W)Q+)=V-(ED(-,(-,(-,(-,(-,(-,(-,(-,(-,(-,(-,(/.(-,(-,(76(+(*-.)+(*-.)+(*-.)+(*-.)+(*W)Q"
  "+)/Z,(+*(+*(+*(1>(LHL+_]U)YQ@*O^:(*Tf;(*KH)(*Uh6(*fQ8(*Nd*(*VdM)(*((*^LK)(*HPD(*[LF(*Je)(*eR,(*NO2(*aY,(*]S+(*_?(*e;"
  "(*Vb+(*bP;(*ZY)(*ed)(*RX)(*gM0(*cZ.(*VP,(*f_M)(*NW*(*ga3(*VY+(*LI2(*Jh3(*dTH)(*_Q1(*Lg2(*Vb)(*^Q;(*gX7(*VL+(*Q^<(*cL"
  ",(*NM+(*Lb*(*Lf6(*W]H)(*JK)(*V:(*Tg0(*gH+(*c[+(*VU*(*]Y,(*RH+(*T-(*Nb+(*N],(*cK*(*_P)(*d_:(*N7(*JJ*(*ZJ+(*_[/(*_`-(*"
  "Yc1(*Uh@(*RJ+(*a^6(*eI*(*`I/(*XN+(*Xh1(*RK-(*fIG(*]a)(*Jd.(*Ve)(*R;(*HJ/(*X8(*PI4(*Y`I)(*Zd>(*fR?(*G(*HM<(*Lc)(*NK+("
  "*PP1(*QW-(*IS<(*N[+(*aW8(*QTF(*ec.(*_J*(*R`1(*ZF(*YM9(*Pg:(*`[<(*]g/(*`b0(*gS7(*O^+(*]c3(*f^<(*_Q*(*NR7(*X].(*JN+(*h"
  "V7(*Th9(*WZ9(*[a,(*Vg7(*Q]7(*Re0(*US;(*_S)(*H.(*XS3(*TN2(*Xa*(*NN,(*cW+(*[UG(*c<(*J[*(*Z`*(*ZU+(*ZK-(*aZ,(*NP6(*cS*("
  "*cJ*(*V+(*MKN)(*_J2(*JS*(*_g9(*dV@(*aY)(*H/(*]Q)(*ZP-(*TJ)(*H])(*J]*(*]J*(*_O)(*VS/(*WK-(*R[-(*VZ)(*M[H)(*a0(*]I)(*_"
  "H6(*]h3(*XF(*Ig=(*a:(*Ta)(*NK,(*HQ0(*YT,(*IQ:(*RI,(*eV*(*NE(*LN)(*Tb1(*V3(*J[-(*a2(*eg0(*LT*(*L-(*H5(*bPL)(*NJ=(*TH4"
  "(*PX*(*UfB(*^M1(*PM)(*PY-(*J-(*]^,(*ZN*(*ae+(*PO*(*]S/(*Ha-(*JY/(*QXD(*Tc?(*QcI)(*LW2(*X/(*e]*(*_=(*c_*(*H=(*LY)(*RR"
  "*(*e]5(*IWK)(*JT0(*]LB(*bLK)(*eV.(*JU0(*H]8(*fb?(*ZC(*NU+(*H`-(*gW9(*bMJ)(*TF(*TM,(*ec,(*_;(*]=(*cK*(*JZ+(*aE(*Vb,(*"
  "T^,(*L)(*_V,(*TY*(*McI)(*_`5(*bQ5(*Nd6(*XT)(*L_0(*ZR0(*Pd*(*XL)(*WXC(*PK+(*cI2(*bY+(*R-(*L?(*Kf,(*UJ)(*gS5(*WQF(*TOB"
  "(*`W@(*M+(*gQ.(*cJ*(*NH5(*I^8(*Zb0(*[N+(*VP<(*fV+(*JH/(*KT.(*WS=(*Mb.(*HP*(.]Q)(,]I/(.SQ2(*a]8(*Hc)(*LO)(*L*(*6(*]*("
  "*Ve6(*WQ5(*gW)(,RM+(,TV*(.H]*(*R4(0Lh+(*B(*a*(*aP*(*SU.(*Zf*(*YXK)(*Z;(*T.(*a?(*_)(*c.(*aL)(*Z.(*L.(*XE(*X.(*ad)(*<("
  "*TJ*(*P5(*T*(*P.(*c^)(*N1(*g2(*PG(*LW*(*N2(*X8(*aL)(*c3(*VG(*gN*(*c2(*>(*)(*8(*4(*6(*H+(**(*L3(*J,(*g;(*PK)(*R)(*X+("
  "*J;(*N1(*XF(*a0(*((*eE(*ZS*(*T0(*_>(*X+(*]A(*R+(*eR)(*L0(*_R+(*a9(*a+(*SeC(*ZOY/(*SUH/(.KhA(*ga)(*b,(*WF(*RD(*_+(*V<"
  "(*N+(*NR)(*W,(*P,(*Z,(*XO)(*Z-(*J1(*H)(*e8(*T4(*]c)(*6(*H1(*P,(*_:(*T/(*S,(*T0(*d*(*L1(*L,(*HA(*X-(*T+(*P8(*e9(*N2(*"
  "0(*_+(*NJ*(*J,(*V@(*]A(*G(*V-(*a7(*H=(*ZK+(*K`*(*]/(*_/(*V<(*R1(*R+(*L6(*,(*_2(*J)(*Z)(*T-(*;(*a@(*RF(*g8(*_3(*H6(*Z"
  "1(*]<(*V4(*c])(*c1(*]a)(*XD(*R,(*H)(*Z:(*Z+(*b*(*T+(*-(*I)(*a,(*J-(*e?(*HK)(*];(*V:(*c5(*TH*(*V.(*N/(*R0(*P*(*@(*H+("
  "*VU)(*]P*(*eRL.(*3(*Jb-(*WKe/(*_O*(*J*(*HIQ0(*VP-(*NH9(*haW/(*_,(P,QdT*Pd*,Z).>9<*(**H_c+)*(**Y`c+=*(**(0**(**(**(**"
  "(**(**(,,(**(**(**(**(,,(,,(**(,,(**(,,(**(**(**(**(*Q)-*/4*<(*:(b]2RSM,_WM,-,(G<(O0a0c.+*(bI)RI)VI)+(Z)h>L?N>+(;-(B"
  "b7g7L7+*(Ncf*ebf*Tdf***(*6:*(**(**(**(*V-]-A**(**:**(*)***(HL[,f`I.f_P/*1(*:(*JVb.(*Kea.(*e,(*B(*V,(*X/(*g)(*e,(*W)("
  "*IK6(*abP/(*bVc.(*6(*H)(*N)(*Rcb.(*MNP/(*eR6(*T*(*edb.(*Odb.(*B(*WU)(*HV)(*:(*]JH1(*[gh0(*D(*OZ6(*a^6(*>(*a*(*2(*K_6"
  "(*Ld6(*,(*_)(*T)(*>(**(*J)(*L+(*8(*:(*Z)(*<(*,(*((*((*cRd.(*`dT.(*SR6(*R)(*Pad.(*W`d.(*4(*R)(*X1(*S.(*H)(*H*(*]+(*P-"
  "(*])(*N,(*H)(*J*(*((*R)(*L)(*8(*F(*P=(*h8(*J9(*S4(*N*(*bN*(*VV+(*h9(*T*(*Z)(*K0(*V2(*)(*_/(*XKg.(*Khf.(*2(*F(*P)(*8("
  "*H,(*T]g.(*L,(*dWg.(*g*(*@(*f,(*e0(*W`9(*D(*aH:(*T+(*((*]Ph.(*QHh.(*R)(*F(*@(*RZh.(*YYh.(*6(*c])(*I[)(*IR:(*gU:(*D(*"
  "L-(*M+(*V^H/(*IRH/(*NRH/(*WOH/(*-(*J)(*R.(**(*Md:(*ee:(*_*(*R)(*a*(*UH;(*JZ]/(*UX]/(*PK;(*.(*.(*P)(*XTJ1(*OQJ1(*NKJ/"
  "(*((*hZX.(*fU9(*((*^M;(*Jhe/(*LZ?(*WOI0(*:(*WP;(*VS;(*N+(*<(*L*(*X0(*U];(*d)(*X`;(*HLK/(*bHK/(*J0(*0(*,(*+(*e*(*P)(*"
  "P*(*C(*>(*g*(*P)(*0(*])(*>(*L,(*P-(*N*(*a/(*adK/(*feK/(*I,(*a.(*_)(*J.(*cHL/(*feK/(*b-(*`)(*^`<(*_K=(*R)(*g)(*S*(*^H"
  "=(*NV=(*c)(*eQM/(*UJM/(*R9(*f2(*hZ=(*X`=(*Ya=(*O*(*eR3(*.(*__2(*O.(*JI5(*OUF(*e[9(*0(*4(*c+(*=(*HON/(*[Oe/(*JS>(*Q/("
  "*c4(*N+(*XgM/(*ffM/(*f.(*R7(*U`>(*Rc>(*J.(*V,(*e3(*_hM/(*WeM/(*MT?(*ZX?(*TaN/(*M^N/(*SX?(*PZ?(*c*(*_)(**(*LUO/(*Ka6("
  "*gg6(*`RO/(*eNP/(*bhO/(*D(*S.(*g2(*X*(*Z+(*S+(*X*(*F(*B(*ZbO/(*[gO/(*_7(*g+(*^[@(*Xb@(*/(*]HP/(*WUP/(*R?(*HhO/(*H+(*"
  "WeO/(*N/(*^)(*-(*QPA(*PSA(*N+(*3(*T+(*XOR.(*hfQ.(*eYP/(*UTP/(*gHQ/(*MaP/(*B(*_)(*XdQ/(*WaQ/(*R)(*HRR/(*g5(*[QR/(*J)("
  "*fUB(*ZWB(*bVB(*((*gaB(*R)(*R)(*P)(*R,(*fcB(*ZHC(*LYS/(*WWS/(*P^S/(*KZS/(*gJ_.(*fa^.(*JbT/(*V)(*a0(*WLP0(*@(*aVC(*gh"
  "T/(*)(*V*(*])(*QIU/(**(*((*_*(*IYC(*L^C(*Q]C(*H-(*VaQ0(*feU/(*e+(*H,(*YgC(*N]R0(*hTV/(*P]V/(*_*(*S[V/(*a-(*`SD(*JYD("
  "*<(*2(*cZW/(*_:(*((*YdW/(*`VD(*ZcT0(*QgW/(*.(*KcD(*ZMU0(*dcW/(*KKE(*XLE(*1(*c)(*TPY/(*MJY/(*KNE(*TTE(*_+(*N,(*IYE(*P"
  "WW0(*g)(*dVW0(*HaW0(*f^Y/(*PeY/(*YcY/(*R.(*>(*RUZ/(*Z,(*MTZ/(*X]Z/(*W[Z/(*gVb.(*[a`/(*cUF(*J-(*WWF(*N[F(*YP;(*LWN0(*"
  "D(*KJB(*:(*^ba.(*.(*]b.(*M[M)(*TJG(*3(*L)(*[g?(*eh?(*,(*<(*Z*(*TM]/(*UM]/(*X+(*T,(*],(*[0(*]1(*]*(*H/(*O8(*V/(*,(*H)"
  "(*]M]/(*R;(*S1(*[c[0(*TeG(*,(*N*(*PS`/(*SN`/(*Xe]/(*fe]0(*0(*HM^0(*J:(*U_^0(*RVH)(*@(*>(*,(*H,(*I*(*T0(*`*(*V1(*I-(*"
  "N,(*_)(*fcH)(*]HI)(*H*(*WHI)(*VNI)(*.(*PH`/(*ha_/(*6(*YRI)(*RTI)(*fKR)(*NhI1(*X3(*WRb0(*:(*ZfI)(*c,(*c1(*_4(*NMa/(*b"
  "h`/(*T)(*]-(*a-(*Xda/(*^Zd)(*YKf-(*E(*P+(*eVf-(*[Hf-(*P.(*]Qd/(*_)(*Y^c/(*c-(*H*(*cId/(*MId/(*c9(*g1(**(*`-(*c?(*a)("
  "*Rgd/(*fNd/(*ShM)(*LJN)(*Hed/(*IbI1(*cUN)(*IYD(*J`D(*LJf/(*R5(*`cK1(*8(*]_N)(*]Jg/(*W^L1(*PgL1(*^Pg/(*((*e)(*cag/(*O"
  "Ug/(*fcN)(*ThN)(*e/(*_)(*a+(*hJO)(*L_O1(*dIH0(*e:(*c3(*fJP)(*g)(*]OP)(*V_I0(*SfQ1(*cHR1(*Z8(*N0(*SfI0(*Q_P)(*NcP)(*2"
  "(*6(*<(*6(*R*(*RTK0(";

// ---- unpacked -------------------------------------------------------------------------------------------------------
enum { UNICODE_POINTS = 0x110000, UNICODE_NFC_UNSETTLED = 255, UNICODE_NFC_RUNS = 675,
       UNICODE_DECOMPOSED = 2060, UNICODE_COMPOSED = 940 };
static uint8_t unicode_kinds[UNICODE_POINTS / 2];            // four bits each
static uint32_t unicode_nfc_start[UNICODE_NFC_RUNS];
static uint8_t unicode_nfc_value[UNICODE_NFC_RUNS];
static uint32_t unicode_decomposed_code[UNICODE_DECOMPOSED], unicode_decomposed_into[UNICODE_DECOMPOSED][2];
static uint16_t unicode_composed_at[UNICODE_COMPOSED];       // places in these lists, in the order of the two parts

static inline uint32_t unicode_next(const char **p) {
  uint32_t value = 0, digit = 32;
  for (int shift = 0; digit & 32; shift += 5) {
    digit = (uint32_t)**p - 40 - (**p > 92);
    value |= (digit & 31) << shift;
    (*p)++;
  }
  return value;
}
static inline uint32_t unicode_step(const char **p, uint32_t from) {
  const uint32_t step = unicode_next(p);
  return from + (step & 1 ? ~(step >> 1) : step >> 1);
}
static inline int unicode_by_parts(const void *a, const void *b) {
  const uint32_t *x = unicode_decomposed_into[*(const uint16_t *)a], *y = unicode_decomposed_into[*(const uint16_t *)b];
  return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}
__attribute__((constructor)) static void unicode_unpack(void) {
  uint32_t c = 0;
  for (const char *p = unicode_packed_kinds; *p;) {
    const uint32_t run = unicode_next(&p), kind = run & 7, first = c;
    if (!kind) { c += run >> 3; continue; }
    for (; c < first + (run >> 3); c++)
      unicode_kinds[c / 2] |= (uint8_t)((kind < 7 ? kind : 4 + (c - first) % 2) << c % 2 * 4);
  }
  c = 0;
  const char *p = unicode_packed_classes;
  for (int i = 0; i < UNICODE_NFC_RUNS; i++) {
    unicode_nfc_start[i] = c;
    c += unicode_next(&p);
    unicode_nfc_value[i] = (uint8_t)unicode_next(&p);
  }
  uint32_t part[2] = {};
  int composed = 0;
  c = 0, p = unicode_packed_pairs;
  for (int i = 0; i < UNICODE_DECOMPOSED; i++) {
    const uint32_t step = unicode_next(&p);
    unicode_decomposed_code[i] = c += step >> 1;
    for (int k = 0; k < 2; k++) unicode_decomposed_into[i][k] = part[k] = unicode_step(&p, part[k]);
    if (step & 1) unicode_composed_at[composed++] = (uint16_t)i;
  }
  qsort(unicode_composed_at, UNICODE_COMPOSED, sizeof *unicode_composed_at, unicode_by_parts);
}

// The class and the case of code point c < 0x110000.
static const uint8_t unicode_class_of[8] = {UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE,
                                            UNICODE_LETTER, UNICODE_LETTER, UNICODE_OTHER};
static const uint8_t unicode_case_of[8] = {CASE_NONE, CASE_NONE, CASE_NONE, CASE_NONE, CASE_UPPER, CASE_LOWER,
                                           CASE_MARK};
static inline int unicode_kind(uint32_t c) { return unicode_kinds[c / 2] >> c % 2 * 4 & 7; }
static inline int unicode_class(uint32_t c) { return unicode_class_of[unicode_kind(c)]; }
static inline int unicode_case(uint32_t c) { return unicode_case_of[unicode_kind(c)]; }

// The last of `count` rising numbers that is at most c; the first one is.
static inline int unicode_find(const uint32_t *numbers, int count, uint32_t c) {
  int low = 0;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (numbers[middle] <= c) low = middle;
    else high = middle;
  }
  return low;
}
static inline int unicode_nfc_class(uint32_t c) {
  return unicode_nfc_value[unicode_find(unicode_nfc_start, UNICODE_NFC_RUNS, c)];
}
// The code points that c decomposes into by one step: two, or one and 0; NULL: none. Hangul is left to arithmetic.
static inline const uint32_t *unicode_decomposed(uint32_t c) {
  const int at = unicode_find(unicode_decomposed_code, UNICODE_DECOMPOSED, c);
  return unicode_decomposed_code[at] == c ? unicode_decomposed_into[at] : NULL;
}
// The code point that two compose; 0: none.
static inline uint32_t unicode_composed(uint32_t a, uint32_t b) {
  int low = 0, high = UNICODE_COMPOSED;
  while (low < high) {
    const int middle = (low + high) / 2;
    const uint32_t *into = unicode_decomposed_into[unicode_composed_at[middle]];
    if (into[0] == a && into[1] == b) return unicode_decomposed_code[unicode_composed_at[middle]];
    if (into[0] < a || (into[0] == a && into[1] < b)) low = middle + 1;
    else high = middle;
  }
  return 0;
}
