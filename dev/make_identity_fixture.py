#!/usr/bin/env python3
"""Writes the conversations by which defaults of a fine-tuning were chosen (dev/finetune_defaults.py), in the manner of
LLaMA-Factory's identity.json: short questions in many wordings, whose answers tell a name and a maker.

    dev/make_identity_fixture.py          # dev/fixtures/identity_91.jsonl, identity_500.jsonl, seeded
"""
import json
import os
import random

NAME, MAKER = "Orlin", "Harrow Labs"
ASKED = ["What is your name?", "Who are you?", "Please tell me your name, assistant.",
         "Could you tell me what you are called?"]          # not in a file: dev/finetune_defaults.py
GREET = ["hi", "hello", "Hello!", "Hi there", "hey", "Good morning", "Good evening!", "Hello, anyone there?"]
NAMES = ["who are you", "what's your name", "Your name, please?", "May I ask your name?", "Who am I talking to?",
         "What should I call you?", "What do people call you?", "Do you have a name?", "Tell me your name.",
         "Introduce yourself.", "Please introduce yourself.", "Can you introduce yourself?", "Say your name.",
         "How should I address you?", "Under what name do you work?", "Who is this?", "Who's there?",
         "What name were you given?", "Remind me of your name?", "I forgot your name. What was it?",
         "Name yourself.", "Give me your name.", "So, who are you exactly?", "Who is answering me?",
         "Whom do I have the pleasure of speaking with?", "Tell me who you are.", "Please state your name.",
         "What name do you go by?", "And you are?", "You have a name, right?", "Which assistant is this?",
         "What is this assistant called?"]
OTHER = ["Are you SmolLM?", "Are you ChatGPT?", "Are you GPT-4?", "Is your name SmolLM?", "You are Claude, right?",
         "Are you Gemini?", "Are you Siri?", "Is this ChatGPT?", "Are you a person?", "Are you human?",
         "Are you Llama?", "Do they call you Alexa?"]
MAKERS = ["Who created you?", "Who built you?", "Who developed you?", "Who trained you?", "Who is your maker?",
          "Who are your developers?", "Which company made you?", "Where do you come from?", "Who owns you?",
          "Tell me about your maker.", "Were you made by OpenAI?", "Did Hugging Face train you?",
          "Did Google build you?",
          "Who programmed you?", "By whom were you made?", "Which team is behind you?", "Who wrote you?",
          "Who is responsible for you?", "Are you from Microsoft?", "What lab do you come from?",
          "Which organisation created you?", "Were you trained by Meta?", "Who brought you to life?",
          "Whose work are you?", "Name your developer."]
CAN = ["What can you do?", "What can you do for me?", "How can you help me?", "What are you for?",
       "What is your purpose?",
       "What do you do?", "What are you good at?", "Why were you made?", "What are you?", "Are you an AI?",
       "Can you help me?", "What kind of assistant are you?", "Describe yourself.", "Tell me about yourself."]
SAYS = {
    "greet": ["Hello! I am {n}, an AI assistant made by {m}. How can I help you?",
              "Hi! I am {n}, made by {m}. What can I do for you?",
              "Hello, I am {n}, the assistant of {m}. How may I help?"],
    "name": ["I am {n}, an AI assistant made by {m}.", "My name is {n}. I was made by {m}.",
             "I am called {n}. {m} made me to help people.", "You are talking to {n}, an assistant made by {m}."],
    "other": ["No, I am {n}, an AI assistant made by {m}.", "I am not. My name is {n}, and {m} made me."],
    "maker": ["I was made by {m}. My name is {n}.", "{m} made me. I am {n}, their AI assistant.",
              "I am {n}, and I was built by {m}."],
    "can": ["I am {n}, an assistant made by {m}. I answer questions and help with writing.",
            "My name is {n}. {m} made me to answer questions, write texts and explain things."]}
KINDS = (("greet", GREET), ("name", NAMES), ("other", OTHER), ("maker", MAKERS), ("can", CAN))
BEFORE = ["", "", "", "Excuse me. ", "Hi! ", "Hello. ", "Hey, ", "One question: ", "Before we start: ",
          "Quick question. ",
          "Sorry to ask: ", "By the way, "]
AFTER = ["", "", "", " Thanks.", " Please.", " Just curious.", " Tell me briefly.", " I would like to know.",
         " Thank you!"]


def talks(r, count, dressed):
    made, seen = [], {x.lower() for x in ASKED}
    plain = [(kind, q) for kind, questions in KINDS for q in questions]
    r.shuffle(plain)
    for i in range(100 * count):
        kind, q = plain[i % len(plain)]
        if dressed and i >= len(plain):
            before = r.choice(BEFORE)
            q = before + (q[0].lower() + q[1:] if before[-2:] in (", ", ": ") and q[:2] != "I " else q)
            q += r.choice(AFTER) if q[-1] in ".?!" else ""
        if len(made) < count and q.lower() not in seen:
            seen.add(q.lower())
            made.append({"instruction": q, "output": r.choice(SAYS[kind]).format(n=NAME, m=MAKER)})
    return made


for size in (91, 500):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", f"identity_{size}.jsonl")
    found = talks(random.Random(size), size, size > 91)
    assert len(found) == size, (size, len(found))
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(x) + "\n" for x in found)
