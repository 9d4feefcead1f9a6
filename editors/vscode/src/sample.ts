/** What the walkthrough opens: a place where a suggestion is easy, and a body to fill. A test fills both with the embedded model. */

export const SAMPLE = `class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def perimeter(self):
        return 2 * (self.width + self.height)


class Window:
    def __init__(self, width, height):
        self.width = width
        

    def area(self):
        ...

    def perimeter(self):
        return 2 * (self.width + self.height)


window = Window(3, 4)
print(window.area(), window.perimeter())
`;

/** What is typed in the walkthrough, and what should stand there then. */
export const TYPED = "self.";
export const COMPLETED = "self.height = height";
/** What the body to fill should hold then. */
export const FILLED = "return self.width * self.height";

/** What stands before the place where typing begins, and before the body to fill. */
export const TYPE_BEHIND = "class Window:\n    def __init__(self, width, height):\n        self.width = width\n        ";
export const FILL_BEHIND = "    def area(self):\n        ";
