"""Fixed texts whose probability under a model can be compared between versions of it. Do not change them."""

from __future__ import annotations

TEXTS = (
    "The water cycle describes how water moves around the Earth. Heat from the sun makes water evaporate from oceans, "
    "lakes, and rivers, and plants release water vapor through their leaves. As the vapor rises, it cools and "
    "condenses into tiny droplets that form clouds. When the droplets grow heavy, they fall back to the ground as "
    "rain, snow, sleet, or hail. Some of this water flows over the land into streams and rivers, some sinks into the "
    "soil and fills underground aquifers, and some is stored for many years in glaciers and ice caps. In time the "
    "water returns to the sea, and the cycle begins again.",
    "To bake a simple loaf of bread you need flour, water, salt, and yeast. Mix the yeast with lukewarm water and "
    "wait until it foams. Then add the flour and the salt and knead the dough for about ten minutes, until it is "
    "smooth and no longer sticks to your hands. Cover it with a cloth and leave it in a warm place for an hour. When "
    "it has doubled in size, shape it into a loaf and let it rest once more while the oven heats. Bake it until the "
    "crust is brown and the bottom sounds hollow when you knock on it. Let the bread cool before you cut it.",
    "The old lighthouse stood on a rock at the end of the bay. For more than a hundred years its keeper had climbed "
    "the stairs every evening to light the lamp, and every morning to put it out again. When the electric light came, "
    "nobody was needed any more, and the last keeper moved into a small house in the village. But at night, when the "
    "wind came from the west and the waves were high, he still woke up and looked out of the window, and only when he "
    "saw the beam pass over the water did he go back to sleep. His granddaughter asked him once what he was afraid of. "
    "Nothing, he said, but somebody ought to look.",
    "def is_prime(number):\n    if number < 2:\n        return False\n    divisor = 2\n    while divisor * divisor <= "
    "number:\n        if number % divisor == 0:\n            return False\n        divisor += 1\n    return True\n\n\n"
    "def primes_below(limit):\n    found = []\n    for number in range(limit):\n        if is_prime(number):\n"
    "            found.append(number)\n    return found\n\n\nif __name__ == '__main__':\n"
    "    print(primes_below(100))\n",
    "A triangle has three sides and three angles, and the angles always add up to one hundred and eighty degrees. If "
    "two sides have the same length, the triangle is called isosceles; if all three do, it is called equilateral, and "
    "then each angle is sixty degrees. In a right triangle one angle is ninety degrees. The side opposite to it is the "
    "longest and is called the hypotenuse. The square of its length is equal to the sum of the squares of the other "
    "two sides. So if the short sides measure three and four, the hypotenuse measures five, because nine and sixteen "
    "are twenty-five.",
    "In the nineteenth century railways changed the way people lived. Before they were built, a journey between two "
    "large cities could take several days, and most people never travelled far from the place where they were born. "
    "Trains carried goods and passengers faster and more cheaply than coaches or boats. Factories could be built far "
    "from the mines and ports, newspapers printed in the capital were read everywhere on the same day, and towns had "
    "to agree on a common time so that the timetables made sense. At the same time many farmers left their villages "
    "and looked for work in the growing cities.",
    "Thank you for your letter of the third of May. We are sorry to hear that the lamp you ordered arrived broken. A "
    "new one was sent to you this morning, and it should reach you within three working days. You do not need to send "
    "the old one back; please put it in the box for electrical waste at your recycling centre. As a small apology we "
    "have added a set of light bulbs to the parcel. If there is anything else that we can do for you, please call us "
    "on any weekday between nine and five, or write to us at the address above.",
    "Bees live in colonies that may have more than fifty thousand members. Most of them are workers, females that do "
    "not lay eggs. A young worker begins by cleaning the cells in which she was born. Later she feeds the larvae, "
    "builds combs out of wax, and guards the entrance of the hive. Only in the last weeks of her life does she fly out "
    "to collect nectar and pollen. When she has found a good place, she returns and dances on the comb: the direction "
    "of the dance and the speed of her movements tell the others where to fly and how far it is.",
)
