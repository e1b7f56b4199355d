"""Wordings that `make_alpaca_prompts.py` makes prompts of: by kind, and words for their slots."""

from __future__ import annotations

SLOTS: dict[str, tuple[str, ...]] = {
    "idea": (
        "compound interest", "photosynthesis", "plate tectonics", "supply and demand",
        "machine translation", "natural selection", "the water cycle", "public-key encryption",
        "inflation", "the placebo effect", "binary search", "jet lag", "the greenhouse effect",
        "herd immunity", "opportunity cost", "recursion", "fermentation", "the Doppler effect",
        "survivorship bias", "a blockchain", "gravity", "crop rotation", "sleep debt", "tides",
        "credit scores", "gradient descent",
    ),
    "craft": (
        "growing tomatoes on a balcony", "baking sourdough bread", "learning to swim as an adult",
        "keeping bees", "repairing a bicycle", "running a first half marathon",
        "painting with watercolours", "moving to another country", "adopting an older dog",
        "writing a short story", "brewing coffee", "learning Portuguese", "playing the cello",
        "organising a book club", "photographing birds", "hiking in winter", "restoring old furniture",
        "raising money for a school", "planning a small wedding", "working from home with two children",
        "saving for a house", "mentoring a junior colleague",
    ),
    "person": (
        "a ten-year-old", "a nervous beginner", "a retired teacher", "my grandmother", "a busy nurse",
        "a new manager", "a visiting student", "an impatient customer", "a farmer", "a group of tourists",
        "a history class", "someone who has never used a computer", "a jury", "a sceptical engineer",
    ),
    "thing": (
        "a folding bicycle", "a reusable water bottle", "a solar lamp", "a language app",
        "a standing desk", "a noise-cancelling headset", "a wooden toy train", "an online pottery course",
        "a small bakery", "a rain jacket", "a meal planner", "a podcast about maps",
        "a second-hand bookshop", "a robot mower", "a community garden", "a travel pillow",
    ),
    "city": (
        "Lisbon", "Kyoto", "Montreal", "Nairobi", "Edinburgh", "Valparaiso", "Tallinn", "Hanoi",
        "Marrakesh", "Ljubljana", "Wellington", "Cartagena", "Bergen", "Tbilisi",
    ),
    "food": (
        "chickpeas", "leftover rice", "aubergines", "sweet potatoes", "red lentils", "stale bread",
        "mushrooms", "cauliflower", "smoked tofu", "green beans", "pumpkin", "spinach",
    ),
    "scene": (
        "a lighthouse keeper who collects radios", "two sisters who inherit a ferry",
        "the last day of a circus", "a detective who cannot lie", "a village where nobody dreams",
        "a robot that is afraid of heights", "a chess game played by post",
        "a storm that stays for a year", "a baker who loses her sense of smell",
        "an astronaut who misses rain", "a library that lends out memories", "a fox that learns to count",
    ),
    "trouble": (
        "my flatmate never washes up", "my train was cancelled and the refund was refused",
        "a colleague takes credit for my work", "the heating has been broken for two weeks",
        "I forgot a close friend's birthday", "my son refuses to do his homework",
        "I cannot fall asleep at night", "our meetings always run late",
        "my neighbour plays drums after ten", "I was given a project I dislike",
        "my laptop overheats whenever I share my screen", "the parcel I ordered never arrived",
    ),
    "issue": (
        "free public transport", "a four-day working week", "homework in primary schools",
        "wind farms near villages", "a tax on sugar", "phones in classrooms", "remote work",
        "voting at sixteen", "zoos", "tipping in restaurants", "electric scooters on pavements",
        "a universal basic income", "school uniforms", "paper books",
    ),
    "pair": (
        "a virus and a bacterium", "a lake and a reservoir", "renting and buying a flat",
        "Python and JavaScript", "tea and coffee", "a novel and a memoir",
        "trains and planes for short trips", "TCP and UDP", "a mean and a median", "yoga and pilates",
        "a crocodile and an alligator", "weather and climate", "a comet and an asteroid",
        "stocks and bonds", "a list and a tuple", "jam and marmalade",
    ),
    "past": (
        "the printing press", "the fall of the Berlin Wall", "the first moon landing", "the Black Death",
        "the invention of the telegraph", "the Silk Road", "the potato's arrival in Europe",
        "the Suez Canal", "the first vaccines", "the Great Fire of London", "the metric system",
        "the Panama Canal",
    ),
    "program": (
        "reverses the words of a sentence", "finds duplicates in a list of names",
        "checks whether a text is a palindrome", "merges two sorted lists",
        "counts how often each word occurs in a file", "converts Roman numerals to numbers",
        "finds the longest run of equal values", "prints a calendar for one month",
        "validates an e-mail address", "computes a moving average", "parses a date written in words",
        "rotates a square matrix by ninety degrees",
    ),
    "language": ("Python", "JavaScript", "Rust", "SQL", "Go", "Bash", "C++", "Haskell"),
    "form": (
        "haiku", "limerick", "sonnet", "short speech", "dialogue", "riddle", "diary entry", "news report",
    ),
    "tone": ("friendly", "formal", "playful", "plain", "encouraging", "dry", "persuasive", "apologetic"),
    "trait": ("curious", "patient", "stubborn", "generous", "cautious", "brave", "careless", "honest"),
    "month": ("January", "March", "April", "June", "August", "September", "November"),
    "few": ("two", "three", "four", "five", "six", "seven", "ten"),
    "round": ("40", "50", "60", "80", "120", "150", "200", "250", "400"),
    "name": (
        "Nora", "Liam", "Ada", "Omar", "Mia", "Jonas", "Priya", "Tomas", "Ingrid", "Kofi", "Lucia", "Wei",
    ),
    "team": ("design", "sales", "support", "research", "finance", "warehouse", "marketing"),
}  # fmt: skip

SHORT: dict[str, tuple[str, ...]] = {
    "helpful_base": (
        "What exactly is meant by {idea}?",
        "What should I know before {craft}?",
        "Can you help me? {trouble}, and I don't know what to say.",
        "What can I cook with {food} and {food2}?",
        "Why is {idea} worth knowing about?",
        "Hi, I'm thinking about {craft}. Where would you start?",
        "What is worth seeing in {city} in {month}?",
        "Why did {past} matter so much?",
        "I want to get better at {craft}. What are {few} mistakes people make?",
        "Could you tell me what {idea} has to do with everyday life?",
    ),
    "koala": (
        "Explain the difference between {pair} to {person}, and say when it matters.",
        "Write a {form} about {scene}.",
        "Write a {language} function that {program}. Add a comment to each step and a small test.",
        "I am interested in {craft} but have little time and a small budget. Make a plan for {few} weeks.",
        "Give me {few} arguments for and {few2} against {issue}, each with an example.",
        "What would have happened without {past}? Answer in {few} paragraphs.",
        "Pretend that you are {person} and describe {idea} in your own words.",
    ),
    "oasst": (
        "Can you explain {idea} in simple words?",
        "Write a {language} script that {program}.",
        "What are the main differences between {pair}?",
        "Write a {form} in which {name} and {name2} argue about {issue}.",
        "I will visit {city} for {few} days in {month} with {person}. What should we do, and what not?",
        "How did {past} change daily life, and for whom did it change the least?",
        "Give me a list of {few} ideas for {craft}.",
        "Why do people disagree about {issue}?",
        "How would you explain {idea} to {person} without using any numbers?",
    ),
    "selfinstruct": (
        "Write a {tone} advertisement for {thing}.",
        "Write a {tone} e-mail to the {team} team, because {trouble}.",
        "Suggest {few} names for {thing}, and explain the best one in a sentence.",
        "Rewrite the sentence so that it sounds more {tone}.\n\n{name} said that {trouble}.",
        "Name {few} adjectives that describe somebody who is {trait} but not {trait2}.",
        "Make a shopping list for a meal with {food} and {food2} for {few} people.",
        "Decide whether the sentence is a fact or an opinion.\n\nNothing changed {city} as much as {past}.",
        "Make up a quiz question about {past} with one right and {few} wrong answers.",
        "Turn the notes into one sentence.\n\n{name}, {city}, {month}, {craft}, {few} friends",
        "Write a {language} expression or query that {program}, without using a loop.",
    ),
    "vicuna": (
        "How can {person} get started with {craft}, step by step and without spending much?",
        "Imagine that you lived at the time of {past}. Write a {form} about an ordinary day.",
        "What if nobody had ever understood {idea}? Describe {few} things that would be different today.",
        "Write a {tone} blog post about {few} days in {city}, with food, people and one surprise.",
        "How often does an average {trait} person hear about {issue} in a year? Show how you estimate it.",
        "Implement a program in {language} that {program}, then discuss its running time.",
    ),
}  # fmt: skip
"""Wordings of the kinds of prompt, one kind for each source of the real set."""

ADDED: tuple[str, ...] = (
    "Keep it below {round} words.",
    "Use a {tone} tone and avoid technical terms.",
    "It is for {person}, with {few} minutes to read it.",
    "Begin with the most important point and end with a question that makes the reader think.",
    "Give {few} examples, one of them from {city}, and say how sure you are of each.",
    "Format the answer as a table with {few} rows and a short title, and put the sources below it.",
    "If something depends on the country, take the rules that hold in {city} and say so at the end.",
    "For context: I have spent {few} months on {craft}, and {trouble}, so please be patient with me.",
)
"""What people add to a request."""

TASKS: tuple[str, ...] = (
    "Summarise the following {kind} in {few} sentences.",
    "What is the main complaint in this {kind}? Answer in a {tone} tone.",
    "Write a reply to the following {kind}. It should be {tone} and no longer than {few} sentences.",
    "List every name and every number in the {kind} below.",
    "Turn this {kind} into a {form} for {person}.",
    "Read the {kind} and say which {few} points you would check first.",
    "Correct the {kind} below where it contradicts itself, and explain each change.",
)
"""What is asked about a longer text."""

SENTENCES: dict[str, tuple[str, ...]] = {
    "review": (
        "I bought {thing} for {person} in {month}.",
        "It arrived after {few} days, although the shop had promised {few2}.",
        "The colours are better than in the pictures, and the packaging was easy to open.",
        "My friend {name} from {city} has had one for {few} years and still likes it.",
        "After {few} weeks one part came loose, and nobody answered my messages.",
        "For {craft} it is more than good enough.",
        "What bothers me is the price: it cost {round} euros more than last year.",
        "Would I buy it again? Probably, but not before {month}.",
    ),
    "report": (
        "The {team} team met on {few} days in {month} and talked about {issue}.",
        "{name} asked for {few} more people, and {name2} wanted to wait until {month}.",
        "Everybody agreed that the office in {city} needs another room.",
        "The budget was raised by {few} per cent, mostly to pay for {thing}.",
        "One person said that {trouble}, and was promised an answer by Friday.",
        "{name} will write a summary about {idea} for {person}.",
        "The next meeting takes place in {city}, without the {team} team.",
        "Nobody could say how the delay of {few} weeks had come about.",
    ),
    "letter": (
        "I am writing to you because {trouble}.",
        "Since {month} I have called {few} times and spoken to {name} and {name2}, to no avail.",
        "As you may know, I have lived in {city} for {few} years.",
        "In my free time I am busy with {craft}, and I need quiet for it.",
        "Your colleague from the {team} team promised to send {thing} as a sign of good will.",
        "I do understand that {issue} keeps your office busy.",
        "Please let me know within {few} days what you intend to do.",
        "If I do not hear from you, I will ask {person} for advice.",
    ),
    "article": (
        "When people in {city} speak about {issue}, they often begin with {past}.",
        "Few of them know that {idea} plays a part in it.",
        "{name}, who has spent {few} years on {craft}, sees it differently.",
        "A study with {round} people found no difference between {pair}.",
        "In {month} the council decided to pay for {thing} in every school.",
        "Critics answer that this would help {person} and nobody else.",
        "The price of {food} and {food2} has doubled in {few} years.",
        "What remains is a question that {past} could not settle either.",
    ),
}  # fmt: skip
"""Sentences of longer texts, in an order in which they make sense."""
